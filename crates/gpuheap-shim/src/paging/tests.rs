//! Against a model of the driver's rules.

use std::cell::RefCell;
use std::collections::BTreeMap;

use gpuheap_cuda::raw::MemLocation;
use proptest::prelude::*;

use super::*;
use crate::ledger::HOST;

const UNIT: usize = 2 << 20;

#[derive(Clone, Debug)]
enum Step {
    Create(usize),
    Release(usize),
    Map(usize, usize),
    Unmap(usize, usize),
    Retain(usize),
}

fn step() -> impl Strategy<Value = (Step, bool)> {
    let step = prop_oneof![
        (1..4_usize).prop_map(Step::Create),
        (0..8_usize).prop_map(Step::Release),
        (0..8_usize, 0..16_usize).prop_map(|(handle, at)| Step::Map(handle, at)),
        (0..16_usize, 1..8_usize).prop_map(|(at, size)| Step::Unmap(at, size)),
        (0..16_usize).prop_map(Step::Retain),
    ];
    (step, prop::bool::weighted(0.8))
}

/// What a driver would do, by its rules: handles, mappings, memory that lives as long as either.
#[derive(Default)]
struct Model {
    next: u64,
    /// By handle: how often it was given out, which memory it is.
    handles: BTreeMap<u64, (u32, u64)>,
    /// By address in units: how many units, which memory.
    mappings: BTreeMap<usize, (usize, u64)>,
    /// By memory, how many units.
    sizes: BTreeMap<u64, usize>,
}

impl Model {
    fn held(&self) -> u64 {
        let lives = |memory: &u64| {
            self.handles.values().any(|(_, other)| other == memory)
                || self.mappings.values().any(|(_, other)| other == memory)
        };
        self.sizes.iter().filter(|(memory, _)| lives(memory)).map(|(_, units)| (units * UNIT) as u64).sum()
    }

    fn handle(&self, number: usize) -> AllocationHandle {
        AllocationHandle(self.handles.keys().nth(number).copied().unwrap_or(4711))
    }
}

/// Carries a step out, in the model as the driver and in the shim's own table around it.
#[allow(clippy::too_many_lines, reason = "one arm for each call")]
fn carry_out(model: &mut Model, step: &Step, goes_well: bool) {
    let refused = if goes_well { None } else { Some(Code::OUT_OF_MEMORY) };
    match *step {
        Step::Create(units) => {
            let mut handle = AllocationHandle(0);
            let place: *mut AllocationHandle = &raw mut handle;
            let prop = AllocationProp::at(MemLocation { kind: location::HOST_NUMA, id: 0 });
            let shared = RefCell::new(model);
            let driver = || {
                let mut model = shared.borrow_mut();
                if let Some(code) = refused {
                    return code;
                }
                model.next += 1;
                let number = model.next;
                model.handles.insert(number, (1, number));
                model.sizes.insert(number, units);
                // SAFETY: `handle` is there.
                unsafe { place.write(AllocationHandle(number)) };
                Code::SUCCESS
            };
            create(&driver, place, units * UNIT, &raw const prop, 0);
        }
        Step::Release(number) => {
            let handle = model.handle(number);
            let shared = RefCell::new(model);
            let driver = || {
                let mut model = shared.borrow_mut();
                let Some((count, _)) = model.handles.get_mut(&handle.0) else { return Code::INVALID_VALUE };
                if let Some(code) = refused {
                    return code;
                }
                *count -= 1;
                if *count == 0 {
                    model.handles.remove(&handle.0);
                }
                Code::SUCCESS
            };
            release(&driver, handle);
        }
        Step::Map(number, at) => {
            let handle = model.handle(number);
            let memory = model.handles.get(&handle.0).map(|(_, memory)| *memory);
            let units = memory.map_or(1, |memory| model.sizes[&memory]);
            let shared = RefCell::new(model);
            let driver = || {
                let mut model = shared.borrow_mut();
                let Some(memory) = memory else { return Code::INVALID_VALUE };
                let taken = model.mappings.iter().any(|(start, (size, _))| at < start + size && *start < at + units);
                if taken || !goes_well {
                    return Code::INVALID_VALUE;
                }
                model.mappings.insert(at, (units, memory));
                Code::SUCCESS
            };
            map(&driver, DevicePtr(at * UNIT), units * UNIT, 0, handle, 0);
        }
        Step::Unmap(at, size) => {
            let shared = RefCell::new(model);
            let driver = || {
                let mut model = shared.borrow_mut();
                // Whole mappings, without a hole, from the first byte to the last.
                let mut end = at;
                while let Some((units, _)) = model.mappings.get(&end).filter(|_| end < at + size) {
                    end += units;
                }
                if end != at + size || !goes_well {
                    return Code::INVALID_VALUE;
                }
                model.mappings.retain(|start, _| *start < at || *start >= end);
                Code::SUCCESS
            };
            unmap(&driver, DevicePtr(at * UNIT), size * UNIT);
        }
        Step::Retain(at) => {
            let mut handle = AllocationHandle(0);
            let place: *mut AllocationHandle = &raw mut handle;
            let shared = RefCell::new(model);
            let driver = || {
                let mut model = shared.borrow_mut();
                let mapping = model.mappings.range(..=at).next_back().filter(|(start, (units, _))| at < *start + units);
                let Some((_, (_, memory))) = mapping.filter(|_| goes_well) else { return Code::INVALID_VALUE };
                let memory = *memory;
                model.handles.entry(memory).or_insert((0, memory)).0 += 1;
                // SAFETY: `handle` is there.
                unsafe { place.write(AllocationHandle(memory)) };
                Code::SUCCESS
            };
            retain(&driver, place, std::ptr::without_provenance_mut(at * UNIT + 5));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_charged_is_what_lives(steps in prop::collection::vec(step(), 1..60)) {
        let mut model = Model::default();
        *lock(&state::get().paging) = Paging::default();
        for (step, goes_well) in &steps {
            carry_out(&mut model, step, *goes_well);
            let charged = state::get().ledger.bytes(Kind::PhysicalHost, HOST);
            prop_assert_eq!(charged, model.held(), "after {:?}", step);
        }
        *lock(&state::get().paging) = Paging::default();
        prop_assert_eq!(state::get().ledger.bytes(Kind::PhysicalHost, HOST), 0);
        prop_assert_eq!(state::get().ledger.violations(), 0);
    }
}
