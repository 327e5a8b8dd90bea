//! Arrays, graphs, memory of other interfaces.

use std::ffi::{c_uint, c_void};

use gpuheap_cuda::raw::{
    AllocNodeParams, Array, Array3dDesc, ArrayDesc, Code, DeviceId, ExternalMemory, Graph, GraphNode, MipmappedArray,
};

use crate::around::{Call, result};
use crate::charge::{Charge, Kind};
use crate::linear::{enter, leave};
use crate::real;
use crate::state::{self, Allocation, Key, lock};

pub(crate) fn create_array(call: Call<'_>, array: *mut Array, wanted: *const ArrayDesc) -> Code {
    let wanted = result(wanted).map(|ArrayDesc { width, height, format, channels }| Array3dDesc {
        width,
        height,
        format,
        channels,
        ..Array3dDesc::default()
    });
    enter_array(call, wanted, 1, || result(array).map(|array| Key::Array(array.0)))
}

pub(crate) fn create_array_3d(call: Call<'_>, array: *mut Array, wanted: *const Array3dDesc) -> Code {
    enter_array(call, result(wanted), 1, || result(array).map(|array| Key::Array(array.0)))
}

pub(crate) fn create_mipmapped(
    call: Call<'_>,
    array: *mut MipmappedArray,
    wanted: *const Array3dDesc,
    levels: c_uint,
) -> Code {
    enter_array(call, result(wanted), levels, || result(array).map(|array| Key::Array(array.0)))
}

pub(crate) fn destroy_array(call: Call<'_>, array: Array) -> Code {
    leave(call, Key::Array(array.0))
}

pub(crate) fn destroy_mipmapped(call: Call<'_>, array: MipmappedArray) -> Code {
    leave(call, Key::Array(array.0))
}

fn enter_array(call: Call<'_>, wanted: Option<Array3dDesc>, levels: u32, key: impl FnOnce() -> Option<Key>) -> Code {
    let bytes = wanted.and_then(|wanted| array_bytes(&wanted, levels));
    match (real::current(), bytes) {
        (Some((context, device)), Some(bytes)) => enter(call, (Kind::Arrays, Some(device), bytes), context, key),
        _ => call(),
    }
}

/// Bytes of all levels, as far as dimensions tell. Nothing for formats whose values have no size of their own.
fn array_bytes(wanted: &Array3dDesc, levels: u32) -> Option<usize> {
    let unit: usize = match wanted.format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return None,
    };
    let mut all = 0_usize;
    let (mut width, mut height, mut depth) = (wanted.width, wanted.height.max(1), wanted.depth.max(1));
    for _ in 0..levels.clamp(1, 64) {
        let sizes = [width, height, depth, wanted.channels as usize];
        let level = sizes.iter().try_fold(unit, |bytes, size| bytes.checked_mul(*size))?;
        all = all.checked_add(level)?;
        (width, height, depth) = ((width / 2).max(1), (height / 2).max(1), (depth / 2).max(1));
    }
    Some(all)
}

pub(crate) fn add_node(
    call: Call<'_>,
    _node: *mut GraphNode,
    _graph: Graph,
    _after: *const GraphNode,
    _count: usize,
    params: *mut AllocNodeParams,
) -> Code {
    let code = call();
    if code.is_success()
        && let Some(params) = result(params)
    {
        let device = params.pool.location.id;
        let mut graphs = lock(&state::get().graphs);
        if !graphs.contains_key(&device)
            && let Some(charge) = Charge::take(Kind::Graphs, Some(device), 0)
        {
            graphs.insert(device, charge);
        }
        drop(graphs);
        refresh_graphs();
    }
    code
}

pub(crate) fn trim_graphs(call: Call<'_>, _device: DeviceId) -> Code {
    let code = call();
    refresh_graphs();
    code
}

/// Brings the figures of graphs up to what the driver says.
pub(crate) fn refresh_graphs() {
    let devices: Vec<DeviceId> = lock(&state::get().graphs).keys().copied().collect();
    for device in devices {
        let Some(bytes) = real::graph_bytes(device) else { continue };
        if let Some(charge) = lock(&state::get().graphs).get_mut(&device) {
            charge.set(bytes);
        }
    }
}

pub(crate) fn import_external(call: Call<'_>, memory: *mut ExternalMemory, wanted: *const c_void) -> Code {
    /// Where the description says how many bytes it is about.
    const SIZE: usize = 24;
    let code = call();
    if code.is_success()
        && let Some(memory) = result(memory)
    {
        // SAFETY: the driver read the same description, which is larger.
        let size = unsafe { wanted.byte_add(SIZE) };
        let bytes = usize::try_from(result(size.cast::<u64>()).unwrap_or(0)).unwrap_or(usize::MAX);
        if let Some(charge) = Charge::take(Kind::Imported, None, bytes) {
            state::get().put(Key::External(memory.0), Allocation { charge, context: 0 });
        }
    }
    code
}

pub(crate) fn destroy_external(call: Call<'_>, memory: ExternalMemory) -> Code {
    leave(call, Key::External(memory.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_have_the_bytes_of_all_their_levels() {
        let wanted = Array3dDesc { width: 100, height: 50, depth: 0, format: 0x20, channels: 4, flags: 0 };
        assert_eq!(array_bytes(&wanted, 1), Some(80_000));
        assert_eq!(array_bytes(&wanted, 3), Some(80_000 + 50 * 25 * 16 + 25 * 12 * 16));
        assert_eq!(array_bytes(&Array3dDesc { width: usize::MAX, ..wanted }, 1), None);
        assert_eq!(array_bytes(&Array3dDesc { format: 0xb0, ..wanted }, 1), None);
    }
}
