//! Streams, events and memory in a stream's order.

use gpuheap_cuda::{DeviceBuffer, DeviceMemory, Event, HostBuffer, Ordered, Stream};

use crate::kernels::Kernels;
use crate::support::bench;

#[test]
fn work_is_done_later_in_order_and_events_tell() {
    let bench = bench();
    let kernels = Kernels::load(&bench);
    let flag = HostBuffer::new(&bench.context, 4).unwrap();
    let memory = DeviceBuffer::new(&bench.context, 4096).unwrap();
    let stream = Stream::new(&bench.context).unwrap();
    let event = Event::new(&bench.context, false).unwrap();
    assert!(stream.is_idle().unwrap());
    assert!(event.is_reached().unwrap(), "an event that is nowhere counts as reached");

    kernels.wait(&stream, &flag, &memory, 1);
    // SAFETY: the memory stays until the stream is synchronised below.
    unsafe { stream.fill(&memory, 0, 4096, 0x5a) }.unwrap();
    event.record(&stream).unwrap();
    assert!(!stream.is_idle().unwrap());
    assert!(!event.is_reached().unwrap());
    flag.write(0, 1).unwrap();
    event.synchronize().unwrap();
    assert!(event.is_reached().unwrap());
    stream.synchronize().unwrap();
    assert!(stream.is_idle().unwrap());
    let mut bytes = [0; 4096];
    bench.context.read(&memory, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0x5a));
}

#[test]
fn a_stream_waits_for_another_s_event_and_for_nothing_else() {
    let bench = bench();
    let kernels = Kernels::load(&bench);
    let flag = HostBuffer::new(&bench.context, 4).unwrap();
    let memory = DeviceBuffer::new(&bench.context, 1024).unwrap();
    let (first, second) = (Stream::new(&bench.context).unwrap(), Stream::new(&bench.context).unwrap());
    let third = Stream::new(&bench.context).unwrap();
    let event = Event::new(&bench.context, false).unwrap();
    kernels.wait(&first, &flag, &memory, 1);
    event.record(&first).unwrap();
    second.wait_for(&event).unwrap();
    kernels.fill(&second, &memory, 256, 7);
    third.synchronize().unwrap();
    let other = DeviceBuffer::new(&bench.context, 1024).unwrap();
    kernels.fill(&third, &other, 256, 9);
    third.synchronize().unwrap();
    assert!(!first.is_idle().unwrap() && !second.is_idle().unwrap(), "both wait for the flag");
    flag.write(0, 1).unwrap();
    second.synchronize().unwrap();
    assert!(first.is_idle().unwrap());
    let mut bytes = [0; 4];
    bench.context.read(&memory, 1020, &mut bytes).unwrap();
    assert_eq!(u32::from_ne_bytes(bytes), 7);
}

#[test]
fn times_between_events_are_told() {
    let bench = bench();
    let memory = DeviceBuffer::new(&bench.context, 1 << 20).unwrap();
    let stream = Stream::new(&bench.context).unwrap();
    let (start, end) = (Event::new(&bench.context, true).unwrap(), Event::new(&bench.context, true).unwrap());
    start.record(&stream).unwrap();
    // SAFETY: the memory stays until the stream is synchronised below.
    unsafe { stream.fill(&memory, 0, 1 << 20, 1) }.unwrap();
    end.record(&stream).unwrap();
    stream.synchronize().unwrap();
    assert!(start.milliseconds_to(&end).unwrap() >= 0.0);
    let untimed = Event::new(&bench.context, false).unwrap();
    untimed.record(&stream).unwrap();
    stream.synchronize().unwrap();
    assert!(start.milliseconds_to(&untimed).is_err());
}

#[test]
fn ordered_memory_is_there_for_its_stream_and_held_by_the_pool() {
    let bench = bench();
    let stream = Stream::new(&bench.context).unwrap();
    let (held_before, used_before) = Ordered::pool(&bench.context).unwrap();
    let memory = Ordered::new(&stream, 3 << 20).unwrap();
    let target = DeviceBuffer::new(&bench.context, 3 << 20).unwrap();
    let (held, used) = Ordered::pool(&bench.context).unwrap();
    assert_eq!(used - used_before, 3 << 20);
    assert!(held >= used && held >= held_before);
    // SAFETY: both stay until the stream is synchronised below: the one is freed in its order.
    unsafe { stream.fill(&memory, 0, memory.bytes(), 0x77) }.unwrap();
    // SAFETY: as above.
    unsafe { stream.copy((&target, 0), (&memory, 0), memory.bytes()) }.unwrap();
    drop(memory);
    stream.synchronize().unwrap();
    let mut bytes = vec![0; 3 << 20];
    bench.context.read(&target, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0x77));
    assert_eq!(Ordered::pool(&bench.context).unwrap().1, used_before);
}
