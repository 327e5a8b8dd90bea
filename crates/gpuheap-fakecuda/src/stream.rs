//! Streams and events.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::time::Instant;

use gpuheap_cuda::raw::{self, Code, DevicePtr};

use crate::entry::{Done, Out, exports, give, stream_exports};
use crate::pages;
use crate::space::Reach;
use crate::state::{Event, lock, ready};
use crate::work::{self, Kind, Work};

/// A function of the program that a stream calls.
type HostFunction = extern "C" fn(*mut c_void);
/// The same in its older form: with the stream and what went wrong.
type Callback = extern "C" fn(raw::Stream, Code, *mut c_void);

exports! {
    fn cuStreamCreate(stream: Out<'_, raw::Stream>, flags: c_uint) {
        create(stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<'_, raw::Stream>, flags: c_uint, priority: c_int) {
        create(stream, flags, priority)
    }

    fn cuStreamDestroy_v2(stream: raw::Stream) {
        let mut state = ready()?;
        if stream.0 <= raw::Stream::PER_THREAD.0 {
            return Err(Code::INVALID_HANDLE);
        }
        let handle = state.stream(stream, false)?;
        state.close_stream(handle);
        Ok(())
    }

    fn cuEventCreate(event: Out<'_, raw::Event>, flags: c_uint) {
        let mut state = ready()?;
        let context = state.current()?;
        let handle = state.handle();
        let timed = flags & raw::EVENT_NO_TIMES == 0;
        state.events.insert(handle, Event { context, timed, recorded: None, reached: None });
        give(event, raw::Event(handle))
    }

    fn cuEventDestroy_v2(event: raw::Event) {
        ready()?.events.remove(&event.0).map(drop).ok_or(Code::INVALID_HANDLE)
    }

    fn cuEventQuery(event: raw::Event) {
        let state = ready()?;
        let event = state.events.get(&event.0).ok_or(Code::INVALID_HANDLE)?;
        state.usable(event.context)?;
        match event.recorded {
            Some((stream, number)) if !state.is_past(stream, number) => Err(Code::NOT_READY),
            _ => Ok(()),
        }
    }

    fn cuEventSynchronize(event: raw::Event) {
        let state = ready()?;
        let found = state.events.get(&event.0).ok_or(Code::INVALID_HANDLE)?;
        let context = found.context;
        state.usable(context)?;
        let pieces: Vec<_> = found.recorded.into_iter().collect();
        let mut state = work::wait_for(state, &pieces);
        let device = state.context(context)?.device;
        state.trim_pools(device);
        state.usable(context)
    }

    fn cuEventElapsedTime(milliseconds: Out<'_, f32>, start: raw::Event, end: raw::Event) {
        elapsed(milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<'_, f32>, start: raw::Event, end: raw::Event) {
        elapsed(milliseconds, start, end)
    }
}

stream_exports! {
    fn cuStreamSynchronize / cuStreamSynchronize_ptsz [thread] (stream: raw::Stream) {
        let mut state = ready()?;
        let stream = state.stream(stream, thread)?;
        if state.streams[&stream].capture.is_some() {
            state.invalidate(stream);
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let (context, kind, given) = {
            let found = &state.streams[&stream];
            (found.context, found.kind, found.given)
        };
        let mut pieces = vec![(stream, given)];
        if kind == Kind::Legacy {
            // The default stream is past its work when the blocking streams are past theirs.
            let last = state.last_pieces(context);
            let blocking = |handle: &usize| state.streams.get(handle).is_some_and(|found| found.kind == Kind::Blocking);
            pieces.extend(last.into_iter().filter(|(handle, _)| blocking(handle)));
        }
        let mut state = work::wait_for(state, &pieces);
        let device = state.context(context)?.device;
        state.trim_pools(device);
        state.usable(context)
    }

    fn cuStreamQuery / cuStreamQuery_ptsz [thread] (stream: raw::Stream) {
        let mut state = ready()?;
        let stream = state.stream(stream, thread)?;
        if state.streams[&stream].capture.is_some() {
            state.invalidate(stream);
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let given = state.streams[&stream].given;
        if state.is_past(stream, given) { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuStreamGetFlags / cuStreamGetFlags_ptsz [thread] (stream: raw::Stream, flags: Out<'_, c_uint>) {
        let mut state = ready()?;
        let stream = state.stream(stream, thread)?;
        give(flags, if state.streams[&stream].kind == Kind::NonBlocking { raw::STREAM_NON_BLOCKING } else { 0 })
    }

    fn cuStreamGetPriority / cuStreamGetPriority_ptsz [thread] (stream: raw::Stream, priority: Out<'_, c_int>) {
        let mut state = ready()?;
        let stream = state.stream(stream, thread)?;
        give(priority, state.streams[&stream].priority)
    }

    fn cuStreamGetCtx / cuStreamGetCtx_ptsz [thread] (stream: raw::Stream, context: Out<'_, raw::Context>) {
        let mut state = ready()?;
        let stream = state.stream(stream, thread)?;
        give(context, raw::Context(state.streams[&stream].context))
    }

    fn cuStreamGetId / cuStreamGetId_ptsz [thread] (stream: raw::Stream, id: Out<'_, u64>) {
        let mut state = ready()?;
        give(id, state.stream(stream, thread)? as u64)
    }

    fn cuStreamWaitEvent / cuStreamWaitEvent_ptsz [thread] (stream: raw::Stream, event: raw::Event, _flags: c_uint) {
        let mut state = ready()?;
        let stream = state.stream(stream, thread)?;
        let Some((origin, number)) = state.events.get(&event.0).ok_or(Code::INVALID_HANDLE)?.recorded else {
            return Ok(());
        };
        // Behind an event of a capture, a stream takes part in it.
        if let Some(capture) = state.streams.get(&origin).and_then(|origin| origin.capture) {
            if let Some(found) = state.streams.get_mut(&stream) {
                found.capture = Some(capture);
            }
            return Ok(());
        }
        state.submit(stream, vec![(origin, number)], None)
    }

    fn cuEventRecord / cuEventRecord_ptsz [thread] (event: raw::Event, stream: raw::Stream) {
        record(event, stream, thread)
    }

    fn cuEventRecordWithFlags / cuEventRecordWithFlags_ptsz [thread] (
        event: raw::Event, stream: raw::Stream, _flags: c_uint,
    ) {
        record(event, stream, thread)
    }

    fn cuLaunchHostFunc / cuLaunchHostFunc_ptsz [thread] (
        stream: raw::Stream, function: Option<HostFunction>, data: *mut c_void,
    ) {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let data = data.expose_provenance();
        let mut state = ready()?;
        let stream = state.stream(stream, thread)?;
        let work: Work = Arc::new(move || {
            function(std::ptr::with_exposed_provenance_mut(data));
            Ok(())
        });
        state.submit(stream, Vec::new(), Some(work))
    }

    fn cuStreamAddCallback / cuStreamAddCallback_ptsz [thread] (
        stream: raw::Stream, function: Option<Callback>, data: *mut c_void, _flags: c_uint,
    ) {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let data = data.expose_provenance();
        let mut state = ready()?;
        let handle = state.stream(stream, thread)?;
        let work: Work = Arc::new(move || {
            function(stream, Code::SUCCESS, std::ptr::with_exposed_provenance_mut(data));
            Ok(())
        });
        state.submit(handle, Vec::new(), Some(work))
    }

    fn cuStreamWriteValue32_v2 / cuStreamWriteValue32_v2_ptsz [thread] (
        stream: raw::Stream, address: DevicePtr, value: u32, _flags: c_uint,
    ) {
        write_value(stream, thread, address.0, value.to_ne_bytes().to_vec())
    }

    fn cuStreamWriteValue64_v2 / cuStreamWriteValue64_v2_ptsz [thread] (
        stream: raw::Stream, address: DevicePtr, value: u64, _flags: c_uint,
    ) {
        write_value(stream, thread, address.0, value.to_ne_bytes().to_vec())
    }
}

fn write_value(stream: raw::Stream, thread: bool, address: usize, value: Vec<u8>) -> Done {
    let mut state = ready()?;
    let stream = state.stream(stream, thread)?;
    let device = state.context(state.streams[&stream].context)?.device;
    if state.space.reach(device, address, value.len(), true) != Reach::Yes {
        return Err(Code::INVALID_VALUE);
    }
    let work: Work = Arc::new(move || {
        let state = lock();
        if state.space.reach(device, address, value.len(), true) != Reach::Yes {
            return Err(Code::ILLEGAL_ADDRESS);
        }
        pages::fill(address, &value, value.len());
        Ok(())
    });
    state.submit(stream, Vec::new(), Some(work))
}

fn create(out: Out<'_, raw::Stream>, flags: u32, priority: i32) -> Done {
    if flags & !raw::STREAM_NON_BLOCKING != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut state = ready()?;
    let context = state.current()?;
    let kind = if flags == raw::STREAM_NON_BLOCKING { Kind::NonBlocking } else { Kind::Blocking };
    let handle = state.add_stream(context, kind, priority.clamp(-5, 0));
    give(out, raw::Stream(handle))
}

fn record(event: raw::Event, stream: raw::Stream, thread: bool) -> Done {
    let mut state = ready()?;
    let stream = state.stream(stream, thread)?;
    let context = state.streams[&stream].context;
    if state.events.get(&event.0).ok_or(Code::INVALID_HANDLE)?.context != context {
        return Err(Code::INVALID_HANDLE);
    }
    let work: Work = Arc::new(move || {
        if let Some(event) = lock().events.get_mut(&event.0) {
            event.reached = Some(Instant::now());
        }
        Ok(())
    });
    state.submit(stream, Vec::new(), Some(work))?;
    let number = state.streams[&stream].given;
    if let Some(found) = state.events.get_mut(&event.0) {
        found.recorded = Some((stream, number));
        found.reached = None;
    }
    Ok(())
}

fn elapsed(out: Out<'_, f32>, start: raw::Event, end: raw::Event) -> Done {
    let state = ready()?;
    let mut times = Vec::new();
    for event in [start, end] {
        let event = state.events.get(&event.0).filter(|event| event.timed).ok_or(Code::INVALID_HANDLE)?;
        let (stream, number) = event.recorded.ok_or(Code::INVALID_HANDLE)?;
        if !state.is_past(stream, number) {
            return Err(Code::NOT_READY);
        }
        times.push(event.reached.ok_or(Code::NOT_READY)?);
    }
    let (start, end) = (times[0], times[1]);
    let milliseconds = if end >= start { (end - start).as_secs_f32() } else { -(start - end).as_secs_f32() } * 1000.0;
    give(out, milliseconds)
}
