//! Reservations, physical memory, mappings: what spilling and moving rest on.

use gpuheap_cuda::raw::{self, AllocationHandle, AllocationProp, Code, MemLocation};
use gpuheap_cuda::{Access, Attribute, DeviceMemory, Location, Mapping, Physical, Reservation};

use crate::support::{Bench, bench};

fn here(bench: &Bench) -> Location {
    Location::Device(bench.device.id())
}

/// A node of the host whose memory can be mapped; nothing on a machine without.
fn node(bench: &Bench) -> Option<Location> {
    let supported = bench.device.attribute(Attribute::HOST_NUMA_VIRTUAL_MEMORY).ok()?;
    let node = bench.device.attribute(Attribute::HOST_NUMA_ID).ok()?;
    (supported == 1).then_some(Location::HostNuma(node.max(0)))
}

fn mapped(bench: &Bench, reservation: &Reservation, offset: usize, physical: &Physical) -> Mapping {
    let mapping = reservation.map(offset, physical).unwrap();
    mapping.set_access(&bench.device, Access::ReadWrite).unwrap();
    mapping
}

fn read(bench: &Bench, memory: &impl DeviceMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes()];
    bench.context.read(memory, 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn sizes_are_multiples_of_the_granularity() {
    let bench = bench();
    let unit = Physical::granularity(&bench.driver, here(&bench)).unwrap();
    assert!(unit.is_power_of_two());
    for bytes in [1, unit - 1, unit + 1] {
        let error = Physical::new(&bench.driver, here(&bench), bytes).unwrap_err();
        assert_eq!(error.code(), Some(Code::INVALID_VALUE), "{bytes}");
    }
    assert_eq!(Physical::new(&bench.driver, here(&bench), unit).unwrap().bytes(), unit);
}

#[test]
fn memory_is_taken_when_it_is_created_and_given_back_with_the_last_mapping() {
    let bench = bench();
    let unit = Physical::granularity(&bench.driver, here(&bench)).unwrap();
    let (before, _) = bench.context.memory().unwrap();
    let reservation = Reservation::new(&bench.driver, 16 * unit).unwrap();
    assert_eq!(bench.context.memory().unwrap().0, before, "addresses are no memory");
    let physical = Physical::new(&bench.driver, here(&bench), 16 * unit).unwrap();
    assert_eq!(before - bench.context.memory().unwrap().0, 16 * unit);
    let mapping = mapped(&bench, &reservation, 0, &physical);
    drop(physical);
    bench.context.fill(&mapping, 0, 16 * unit, 3).unwrap();
    assert_eq!(before - bench.context.memory().unwrap().0, 16 * unit, "the mapping still holds it");
    drop(mapping);
    assert_eq!(bench.context.memory().unwrap().0, before);
}

#[test]
fn a_released_handle_leaves_the_mapping_and_a_retained_one_is_the_same() {
    let bench = bench();
    let unit = Physical::granularity(&bench.driver, here(&bench)).unwrap();
    let api = bench.driver.api();
    let (before, _) = bench.context.memory().unwrap();
    let reservation = Reservation::new(&bench.driver, unit).unwrap();
    let prop = AllocationProp::at(MemLocation { kind: raw::location::DEVICE, id: bench.device.id() });
    let mut handle = AllocationHandle(0);
    // SAFETY: both outlive the call.
    assert!(unsafe { (api.cuMemCreate)(&raw mut handle, unit, &raw const prop, 0) }.is_success());
    // SAFETY: the range is reserved, all of it.
    assert!(unsafe { (api.cuMemMap)(reservation.address(), unit, 0, handle, 0) }.is_success());
    // SAFETY: created above.
    assert!(unsafe { (api.cuMemRelease)(handle) }.is_success());
    let mut again = AllocationHandle(0);
    let inside = std::ptr::with_exposed_provenance_mut(reservation.address().0 + unit / 2);
    // SAFETY: `again` outlives the call, the address is only looked up.
    assert!(unsafe { (api.cuMemRetainAllocationHandle)(&raw mut again, inside) }.is_success());
    assert_eq!(again, handle);
    // SAFETY: mapped above.
    assert!(unsafe { (api.cuMemUnmap)(reservation.address(), unit) }.is_success());
    assert_eq!(before - bench.context.memory().unwrap().0, unit, "the second handle still holds it");
    // SAFETY: retained above.
    assert!(unsafe { (api.cuMemRelease)(again) }.is_success());
    assert_eq!(bench.context.memory().unwrap().0, before);
}

#[test]
fn neighbours_are_one_range_and_each_is_unmapped_as_it_was_mapped() {
    let bench = bench();
    let unit = Physical::granularity(&bench.driver, here(&bench)).unwrap();
    let api = bench.driver.api();
    let reservation = Reservation::new(&bench.driver, 4 * unit).unwrap();
    let parts: Vec<_> = (0..2).map(|_| Physical::new(&bench.driver, here(&bench), unit).unwrap()).collect();
    let first = mapped(&bench, &reservation, unit, &parts[0]);
    let second = mapped(&bench, &reservation, 2 * unit, &parts[1]);
    assert_eq!(first.found_handle().unwrap(), parts[0].handle());
    assert_eq!(second.found_handle().unwrap(), parts[1].handle());
    assert_eq!(reservation.map(2 * unit, &parts[0]).unwrap_err().code(), Some(Code::INVALID_VALUE), "mapped already");
    assert!(reservation.map(4 * unit, &parts[0]).is_err(), "not reserved");
    // SAFETY: refused, since memory is mapped from its start only.
    let offset = unsafe { (api.cuMemMap)(reservation.address(), unit, unit, parts[0].handle(), 0) };
    assert_eq!(offset, Code::NOT_SUPPORTED);
    // SAFETY: refused, since it is a part of what was mapped.
    let part = unsafe { (api.cuMemUnmap)(first.address(), unit / 2) };
    assert_eq!(part, Code::INVALID_VALUE);
    bench.context.fill(&first, 0, unit, 1).unwrap();
    bench.context.fill(&second, 0, unit, 2).unwrap();
    drop(second);
    assert!(read(&bench, &first).iter().all(|byte| *byte == 1), "the neighbour is as it was");
}

#[test]
fn access_is_none_at_first_and_then_what_was_set() {
    let bench = bench();
    let unit = Physical::granularity(&bench.driver, here(&bench)).unwrap();
    let reservation = Reservation::new(&bench.driver, unit).unwrap();
    let physical = Physical::new(&bench.driver, here(&bench), unit).unwrap();
    let mapping = reservation.map(0, &physical).unwrap();
    assert_eq!(mapping.access(&bench.device).unwrap(), Access::None);
    for access in [Access::ReadWrite, Access::Read, Access::ReadWrite] {
        mapping.set_access(&bench.device, access).unwrap();
        assert_eq!(mapping.access(&bench.device).unwrap(), access);
    }
    assert!(mapping.set_host_access(Access::ReadWrite).is_err(), "the host does not reach memory of a device");
}

#[test]
fn what_was_written_stays_with_the_physical_memory_and_not_with_the_address() {
    let bench = bench();
    let unit = Physical::granularity(&bench.driver, here(&bench)).unwrap();
    let reservation = Reservation::new(&bench.driver, unit).unwrap();
    let (red, blue) = (
        Physical::new(&bench.driver, here(&bench), unit).unwrap(),
        Physical::new(&bench.driver, here(&bench), unit).unwrap(),
    );
    for (physical, value) in [(&red, 0x11), (&blue, 0x22)] {
        let mapping = mapped(&bench, &reservation, 0, physical);
        bench.context.fill(&mapping, 0, unit, value).unwrap();
    }
    for (physical, value) in [(&red, 0x11), (&blue, 0x22)] {
        let mapping = mapped(&bench, &reservation, 0, physical);
        assert!(read(&bench, &mapping).iter().all(|byte| *byte == value));
    }
}

/// The move that spilling is: the same address, other memory, the same bytes. There and back.
#[test]
fn a_chunk_moves_to_the_host_and_back_at_its_address() {
    let bench = bench();
    let Some(node) = node(&bench) else {
        eprintln!("skipped: memory of the host cannot be mapped on this machine");
        return;
    };
    let unit = Physical::granularity(&bench.driver, here(&bench)).unwrap();
    assert_eq!(Physical::granularity(&bench.driver, node).unwrap(), unit);
    let bytes = 4 * unit;
    let reservation = Reservation::new(&bench.driver, 2 * bytes).unwrap();
    let device = Physical::new(&bench.driver, here(&bench), bytes).unwrap();
    let (with_device, _) = bench.context.memory().unwrap();
    let host = Physical::new(&bench.driver, node, bytes).unwrap();
    assert_eq!(bench.context.memory().unwrap().0, with_device, "memory of the host is none of the device");

    let text: Vec<u8> = (0..=252_u8).cycle().step_by(7).take(bytes).collect();
    let mut chunk = mapped(&bench, &reservation, 0, &device);
    bench.context.write(&chunk, 0, &text).unwrap();
    for physical in [&host, &device] {
        let beside = mapped(&bench, &reservation, bytes, physical);
        bench.context.copy((&beside, 0), (&chunk, 0), bytes).unwrap();
        drop(beside);
        drop(chunk);
        chunk = mapped(&bench, &reservation, 0, physical);
        assert_eq!(chunk.address(), reservation.address());
        assert_eq!(chunk.physical().location(), physical.location());
        assert!(read(&bench, &chunk) == text, "the bytes are the same");
    }
}

#[test]
fn places_that_are_none_are_refused() {
    let bench = bench();
    let unit = Physical::granularity(&bench.driver, here(&bench)).unwrap();
    // Not a node of the host that is none: drivers before 595 do not survive that.
    for location in [Location::Device(-1), Location::Device(4711)] {
        assert!(Physical::new(&bench.driver, location, unit).is_err(), "{location:?}");
    }
}
