//! Memory that libraries take from the caching allocator behind the program's back.
//!
//! cuBLAS: PyTorch gives each handle a workspace on each stream, made with the first matrix product and never given
//! back. The program's thread has one handle and autograd's thread another, so a training step holds two. Recordings of
//! BERT-large, ResNet-152 and GPT-2 on an H200 have exactly these two, of 32 MiB each; cuBLASLt shares them,
//! and has another MiB of its own.

use std::collections::BTreeMap;

use super::{Device, convolution};
use crate::levers::Edits;
use crate::program::{Program, Slot};
use crate::trace::{Class, Event, NO_MODULE};

/// For compute capability 9.0: 32 MiB.
const HOPPER: u64 = 32 << 20;
/// For all others `:4096:2:16:8`, in KiB: two blocks of 4 MiB and eight of 16 KiB.
const OTHERS: u64 = (4096 * 2 + 16 * 8) << 10;

/// What cuBLASLt keeps for itself from the first product with a bias on, in bytes.
const LIGHT: u64 = 1 << 20;

/// Whether an operator is a matrix product that goes through cuBLAS.
#[must_use]
pub fn is_matrix_product(op: &str) -> bool {
    let name = op.strip_prefix("aten.").unwrap_or(op);
    let name = name.split('.').next().unwrap_or(name);
    matches!(
        name,
        "mm" | "addmm"
            | "bmm"
            | "baddbmm"
            | "linear"
            | "linear_backward"
            | "matmul"
            | "addmv"
            | "mv"
            | "dot"
            | "addbmm"
            | "_int_mm"
            | "_scaled_mm"
            | "_addmm_activation"
            | "_grouped_mm"
    )
}

/// The bytes of one cuBLAS workspace: what `CUBLAS_WORKSPACE_CONFIG` says, else PyTorch's rule.
#[must_use]
pub(super) fn cublas_workspace(device: &Device, config: Option<&str>) -> u64 {
    let parsed = config.and_then(parse_workspace_config);
    parsed.unwrap_or(if device.compute_capability / 10 == 9 { HOPPER } else { OTHERS })
}

/// `:SIZE:COUNT` pairs, sizes in KiB.
fn parse_workspace_config(config: &str) -> Option<u64> {
    let numbers: Vec<u64> =
        config.split(':').filter(|part| !part.is_empty()).map(str::parse).collect::<Result<_, _>>().ok()?;
    if numbers.is_empty() || !numbers.len().is_multiple_of(2) {
        return None;
    }
    let sum = numbers.chunks(2).try_fold(0_u64, |sum, pair| sum.checked_add(pair[0].checked_mul(pair[1])?))?;
    sum.checked_mul(1 << 10)
}

/// Adds the scratch memory of libraries to a program: a workspace of cuBLAS before the first matrix product of each
/// thread, and what each convolution takes for itself.
pub fn add_workspaces(program: &mut Program<'_>, device: &Device, config: Option<&str>) {
    let bytes = cublas_workspace(device, config);
    let trace = program.trace;
    let products: Vec<bool> = trace.ops.iter().map(|op| is_matrix_product(op)).collect();
    let convolutions: Vec<bool> = trace.ops.iter().map(|op| op.contains("convolution")).collect();
    let mut seen = [false; 256];
    let mut edits = Edits::default();
    // What lives for one call only can share a slot with all others of its size.
    let mut scratch: BTreeMap<u64, u32> = BTreeMap::new();
    let traced = has_scratch_of(program, &convolutions);
    let mut seen_light = false;
    for at in 0..program.events.len() {
        let Event::Op(call) = program.events[at] else { continue };
        let call = &trace.calls[call as usize];
        let light = trace.op_name(call).starts_with("aten.addmm.") && !std::mem::replace(&mut seen_light, true);
        if products[call.op as usize] && !std::mem::replace(&mut seen[usize::from(call.thread)], true) {
            let slot = program.add(Slot { bytes, class: Class::Workspace, module: NO_MODULE });
            edits.before(at, Event::Alloc(slot));
        } else if convolutions[call.op as usize] && !traced {
            let bytes = convolution::scratch(program, call);
            if bytes > 0 {
                let slot = Slot { bytes, class: Class::Workspace, module: NO_MODULE };
                let slot = *scratch.entry(bytes).or_insert_with(|| program.add(slot));
                edits.before(at, Event::Alloc(slot));
                edits.before(at, Event::Free(slot));
            }
        }
        if light {
            let slot = program.add(Slot { bytes: LIGHT, class: Class::Workspace, module: NO_MODULE });
            edits.before(at, Event::Alloc(slot));
        }
    }
    (program.events, _) = edits.apply(&program.events);
}

/// Whether the trace has scratch memory of such operators itself: the tracer sees shapes and strides, so it knows better.
fn has_scratch_of(program: &Program<'_>, ops: &[bool]) -> bool {
    // A backward pass takes and frees one for each of its results before the operator is noted.
    let is_scratch = |event: &Event| matches!(event, Event::Alloc(slot) | Event::Free(slot) if program.slots[*slot as usize].class == Class::Workspace);
    program.events.windows(2).any(|pair| match pair[1] {
        Event::Op(call) => ops[program.trace.calls[call as usize].op as usize] && is_scratch(&pair[0]),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspaces_follow_pytorchs_rule() {
        let bytes = |name: &str, config| cublas_workspace(&Device::find(name, None).unwrap(), config);
        assert_eq!(bytes("H200", None), 33_554_432);
        assert_eq!(bytes("A100", None), 8_519_680);
        assert_eq!(bytes("H200", Some(":4096:8")), 33_554_432);
        assert_eq!(bytes("H200", Some(":16:8")), 131_072);
        assert_eq!(bytes("H200", Some("nonsense")), 33_554_432);
    }

    #[test]
    fn products_are_told_by_their_names() {
        assert!(is_matrix_product("aten.addmm.default") && is_matrix_product("aten.bmm.default"));
        assert!(!is_matrix_product("aten.add.Tensor") && !is_matrix_product("aten.mul.Tensor"));
    }
}
