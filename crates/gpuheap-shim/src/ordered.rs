//! Memory in a stream's order. A call is no memory: the pool takes chunks from the device and keeps them, so what counts
//! is what the pools hold.

use gpuheap_cuda::raw::{Code, DeviceId, DevicePtr, MemoryPool, PoolProps, Stream};

use crate::around::{Call, result};
use crate::charge::{Charge, Kind};
use crate::linear::leave_known;
use crate::state::{self, Key, lock};
use crate::{converted, devices, real};

/// What a pool may take from the device at once for a small request.
const CHUNK: usize = 32 << 20;

pub(crate) fn allocate(call: Call<'_>, address: *mut DevicePtr, bytes: usize, _stream: Stream) -> Code {
    within_budget(call, address, bytes, None)
}

pub(crate) fn allocate_from(
    call: Call<'_>,
    address: *mut DevicePtr,
    bytes: usize,
    pool: MemoryPool,
    _stream: Stream,
) -> Code {
    within_budget(call, address, bytes, Some(pool))
}

pub(crate) fn free(call: Call<'_>, address: DevicePtr, _stream: Stream) -> Code {
    if let Some(code) = converted::free(address) {
        return code;
    }
    // Memory of other kinds may be freed in order as well; it counts as free from the call on.
    let (code, known) = leave_known(call, Key::Address(address.0));
    if !known {
        refresh();
    }
    code
}

pub(crate) fn create_pool(call: Call<'_>, pool: *mut MemoryPool, props: *const PoolProps) -> Code {
    let code = call();
    if code.is_success()
        && let (Some(pool), Some(props)) = (result(pool), result(props))
    {
        know(pool, props.location.id);
    }
    code
}

pub(crate) fn change_pool(call: Call<'_>, _pool: MemoryPool) -> Code {
    let code = call();
    refresh();
    code
}

pub(crate) fn trim_pool(call: Call<'_>, _pool: MemoryPool, _keep: usize) -> Code {
    let code = call();
    refresh();
    code
}

/// Allocates if what the pool may take for it is within the budget. What it takes is charged when it is known.
fn within_budget(call: Call<'_>, address: *mut DevicePtr, bytes: usize, pool: Option<MemoryPool>) -> Code {
    let limited = state::get().ledger.has_budgets().then(real::current).flatten().map(|(_, device)| device);
    let limited = limited.filter(|device| state::get().ledger.budget(devices::place(Some(*device))) > 0);
    // Held until the pool's own figure is known: nobody else gets these bytes meanwhile.
    let mut held = None;
    if let Some(device) = limited
        && !has_room(pool.or_else(|| real::current_pool(device)), bytes)
    {
        let wanted = bytes.checked_next_multiple_of(CHUNK).unwrap_or(usize::MAX);
        held = Charge::try_take(Kind::Pools, Some(device), wanted);
        if held.is_none() {
            // A synchronisation may have shrunk a pool since it was last looked at.
            refresh();
            held = Charge::take(Kind::Pools, Some(device), wanted);
        }
        if held.is_none() {
            return Code::OUT_OF_MEMORY;
        }
    }
    let code = call();
    if code.is_success()
        && let Some(address) = result(address)
        && let Some((pool, device)) = real::pool_of(address)
    {
        know(pool, device);
    }
    refresh();
    drop(held);
    code
}

/// Whether a pool has bytes that nobody uses, enough of them that the device need not give any, and all it holds charged.
fn has_room(pool: Option<MemoryPool>, bytes: usize) -> bool {
    let Some(pool) = pool else { return false };
    let Some((held, used)) = real::pool_bytes(pool) else { return false };
    let charged = lock(&state::get().pools).get(&pool.0).map_or(0, Charge::bytes);
    held <= charged && held.saturating_sub(used) >= bytes as u64
}

fn know(pool: MemoryPool, device: DeviceId) {
    let mut pools = lock(&state::get().pools);
    if !pools.contains_key(&pool.0)
        && let Some(charge) = Charge::take(Kind::Pools, Some(device), 0)
    {
        pools.insert(pool.0, charge);
    }
}

/// Brings the figures of pools up to what the driver says.
pub(crate) fn refresh() {
    let pools: Vec<usize> = lock(&state::get().pools).keys().copied().collect();
    for pool in pools {
        // The driver is asked without the lock. Of two that do so at once, either figure was true a moment ago.
        let bytes = real::pool_bytes(MemoryPool(pool));
        let mut pools = lock(&state::get().pools);
        match (bytes, pools.get_mut(&pool)) {
            (Some((held, _)), Some(charge)) if charge.bytes() != held => charge.set(held),
            (None, Some(_)) => drop(pools.remove(&pool)),
            _ => {}
        }
    }
}
