//! Devices, linear memory, memory of the host.

use gpuheap_cuda::raw::Code;
use gpuheap_cuda::{Attribute, DeviceBuffer, DeviceMemory, Error, HostBuffer};

use crate::support::bench;

const MIB: usize = 1 << 20;

#[test]
fn a_device_tells_what_it_is() {
    let bench = bench();
    assert!(bench.driver.version() >= gpuheap_cuda::OLDEST_VERSION);
    assert!(!bench.device.name().unwrap().is_empty());
    assert!(bench.device.memory().unwrap() >= 256 * MIB);
    assert_eq!(bench.device.attribute(Attribute::VIRTUAL_MEMORY).unwrap(), 1);
    assert_eq!(bench.device.attribute(Attribute::MEMORY_POOLS).unwrap(), 1);
    assert!(bench.device.has_context().unwrap());
    let (free, total) = bench.context.memory().unwrap();
    assert!(free > 0 && free <= total);
    // A driver may tell a little less here than as the size of the device.
    assert!(total <= bench.device.memory().unwrap());
}

#[test]
fn bytes_come_back_as_they_were_written_filled_and_copied() {
    let bench = bench();
    let context = &bench.context;
    let (first, second) = (DeviceBuffer::new(context, 5000).unwrap(), DeviceBuffer::new(context, 5000).unwrap());
    let bytes: Vec<u8> = (0..=250_u8).cycle().take(5000).collect();
    context.write(&first, 0, &bytes).unwrap();
    context.fill(&second, 0, 5000, 0xab).unwrap();
    context.copy((&second, 100), (&first, 1000), 2000).unwrap();
    let mut found = vec![0; 5000];
    context.read(&second, 0, &mut found).unwrap();
    assert!(found[..100].iter().all(|byte| *byte == 0xab));
    assert_eq!(found[100..2100], bytes[1000..3000]);
    assert!(found[2100..].iter().all(|byte| *byte == 0xab));
    context.write(&second, 4998, &[7, 8]).unwrap();
    let mut end = [0; 3];
    context.read(&second, 4997, &mut end).unwrap();
    assert_eq!(end, [0xab, 7, 8]);
}

#[test]
fn a_range_that_is_not_within_the_memory_is_refused_before_the_driver_sees_it() {
    let bench = bench();
    let memory = DeviceBuffer::new(&bench.context, 100).unwrap();
    let refused = bench.context.fill(&memory, 90, 11, 0);
    assert_eq!(refused, Err(Error::Range { offset: 90, length: 11, size: 100 }));
    assert!(bench.context.read(&memory, usize::MAX, &mut [0]).is_err());
    assert_eq!(memory.range(100, 0).unwrap().0, memory.address().0 + 100);
}

#[test]
fn free_memory_falls_by_what_is_taken_and_comes_back() {
    let bench = bench();
    let (before, _) = bench.context.memory().unwrap();
    let memory = DeviceBuffer::new(&bench.context, 64 * MIB).unwrap();
    let (during, _) = bench.context.memory().unwrap();
    assert_eq!(before - during, 64 * MIB);
    drop(memory);
    assert_eq!(bench.context.memory().unwrap().0, before);
}

#[test]
fn more_than_there_is_is_out_of_memory_and_nothing_is_lost() {
    let bench = bench();
    let (free, _) = bench.context.memory().unwrap();
    let error = DeviceBuffer::new(&bench.context, bench.device.memory().unwrap() + 1).unwrap_err();
    assert_eq!(error.code(), Some(Code::OUT_OF_MEMORY));
    assert_eq!(error.to_string(), "Failed to call `cuMemAlloc_v2`: CUDA_ERROR_OUT_OF_MEMORY (2)");
    assert_eq!(bench.context.memory().unwrap().0, free);
    let none = DeviceBuffer::new(&bench.context, 0).unwrap_err();
    assert_eq!(none.code(), Some(Code::INVALID_VALUE));
    let memory = DeviceBuffer::new(&bench.context, 16).unwrap();
    bench.context.fill(&memory, 0, 16, 1).unwrap();
}

#[test]
fn host_memory_is_known_to_the_device_by_its_own_address() {
    let bench = bench();
    let (host, device) = (HostBuffer::new(&bench.context, 64).unwrap(), DeviceBuffer::new(&bench.context, 64).unwrap());
    host.write(60, 0xdead_beef).unwrap();
    bench.context.copy((&device, 0), (&host, 0), 64).unwrap();
    let mut found = [0; 8];
    bench.context.read(&device, 56, &mut found).unwrap();
    assert_eq!(found, [0, 0, 0, 0, 0xef, 0xbe, 0xad, 0xde]);
    bench.context.fill(&host, 0, 4, 0x11).unwrap();
    assert_eq!(host.read(0).unwrap(), 0x1111_1111);
    assert!(host.read(62).is_err() && host.read(64).is_err());
}
