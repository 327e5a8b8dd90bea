//! Streams, events, and memory that is given and taken in a stream's order.

use std::ffi::c_void;

use crate::context::{Context, DeviceMemory};
use crate::error::Error;
use crate::library::check;
use crate::raw::{self, Code, DevicePtr};

/// A stream of its own, which does not wait for the default stream. It is finished before it is dropped.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    handle: raw::Stream,
}

impl Stream {
    /// A stream.
    pub fn new(context: &Context) -> Result<Self, Error> {
        let _current = context.enter()?;
        let mut handle = raw::Stream::NULL;
        // SAFETY: `handle` outlives the call.
        check("cuStreamCreate", unsafe { (context.api().cuStreamCreate)(&raw mut handle, raw::STREAM_NON_BLOCKING) })?;
        Ok(Self { context: context.clone(), handle })
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The driver's handle.
    #[must_use]
    pub fn handle(&self) -> raw::Stream {
        self.handle
    }

    /// Waits for all that it was given so far.
    pub fn synchronize(&self) -> Result<(), Error> {
        let _current = self.context.enter()?;
        // SAFETY: the stream is there as long as `self` is.
        check("cuStreamSynchronize", unsafe { (self.context.api().cuStreamSynchronize)(self.handle) })
    }

    /// Whether all that it was given so far is done.
    pub fn is_idle(&self) -> Result<bool, Error> {
        let _current = self.context.enter()?;
        // SAFETY: the stream is there as long as `self` is.
        finished("cuStreamQuery", unsafe { (self.context.api().cuStreamQuery)(self.handle) })
    }

    /// Lets what it is given from now on wait for `event`.
    pub fn wait_for(&self, event: &Event) -> Result<(), Error> {
        let _current = self.context.enter()?;
        // SAFETY: stream and event are there as long as their owners are.
        let code = unsafe { (self.context.api().cuStreamWaitEvent)(self.handle, event.handle, 0) };
        check("cuStreamWaitEvent", code)
    }

    /// Copies `length` bytes when the stream comes to it.
    ///
    /// # Safety
    ///
    /// Both must stay as they are, mapped and in place, until the stream is past the copy.
    pub unsafe fn copy(
        &self,
        (to, to_offset): (&impl DeviceMemory, usize),
        (from, from_offset): (&impl DeviceMemory, usize),
        length: usize,
    ) -> Result<(), Error> {
        let (target, source) = (to.range(to_offset, length)?, from.range(from_offset, length)?);
        let _current = self.context.enter()?;
        // SAFETY: both ranges are within their memory, which stays, as the caller established.
        let code = unsafe { (self.context.api().cuMemcpyDtoDAsync_v2)(target, source, length, self.handle) };
        check("cuMemcpyDtoDAsync_v2", code)
    }

    /// Writes `value` to `length` bytes when the stream comes to it.
    ///
    /// # Safety
    ///
    /// As for [`Stream::copy`].
    pub unsafe fn fill(&self, to: &impl DeviceMemory, offset: usize, length: usize, value: u8) -> Result<(), Error> {
        let address = to.range(offset, length)?;
        let _current = self.context.enter()?;
        // SAFETY: the range is within memory that stays, as the caller established.
        let code = unsafe { (self.context.api().cuMemsetD8Async)(address, value, length, self.handle) };
        check("cuMemsetD8Async", code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: created when this was made, and destroyed here alone. A failure is one of the work that was given,
        // which its own synchronisation reports.
        unsafe { (self.context.api().cuStreamSynchronize)(self.handle) };
        // SAFETY: as above.
        unsafe { (self.context.api().cuStreamDestroy_v2)(self.handle) };
    }
}

/// A point in a stream's work.
#[derive(Debug)]
pub struct Event {
    context: Context,
    handle: raw::Event,
}

impl Event {
    /// An event that is nowhere yet: it counts as reached. With `times`, times between events can be told.
    pub fn new(context: &Context, times: bool) -> Result<Self, Error> {
        let _current = context.enter()?;
        let mut handle = raw::Event::NULL;
        let flags = if times { 0 } else { raw::EVENT_NO_TIMES };
        // SAFETY: `handle` outlives the call.
        check("cuEventCreate", unsafe { (context.api().cuEventCreate)(&raw mut handle, flags) })?;
        Ok(Self { context: context.clone(), handle })
    }

    /// Puts it behind all that `stream` was given so far.
    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        let _current = self.context.enter()?;
        // SAFETY: stream and event are there as long as their owners are.
        check("cuEventRecord", unsafe { (self.context.api().cuEventRecord)(self.handle, stream.handle) })
    }

    /// Whether the stream came to it.
    pub fn is_reached(&self) -> Result<bool, Error> {
        let _current = self.context.enter()?;
        // SAFETY: the event is there as long as `self` is.
        finished("cuEventQuery", unsafe { (self.context.api().cuEventQuery)(self.handle) })
    }

    /// Waits until the stream comes to it.
    pub fn synchronize(&self) -> Result<(), Error> {
        let _current = self.context.enter()?;
        // SAFETY: the event is there as long as `self` is.
        check("cuEventSynchronize", unsafe { (self.context.api().cuEventSynchronize)(self.handle) })
    }

    /// Milliseconds from `self` to `end`, both reached and made with times.
    pub fn milliseconds_to(&self, end: &Self) -> Result<f32, Error> {
        let _current = self.context.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: `milliseconds` outlives the call, both events are there.
        let code = unsafe { (self.context.api().cuEventElapsedTime)(&raw mut milliseconds, self.handle, end.handle) };
        check("cuEventElapsedTime", code)?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: created when this was made, and destroyed here alone.
        unsafe { (self.context.api().cuEventDestroy_v2)(self.handle) };
    }
}

/// Memory from the device's current pool, given and taken in the order of a stream.
#[derive(Debug)]
pub struct Ordered<'a> {
    stream: &'a Stream,
    address: DevicePtr,
    bytes: usize,
}

impl<'a> Ordered<'a> {
    /// `bytes` bytes, there for what `stream` is given from now on.
    pub fn new(stream: &'a Stream, bytes: usize) -> Result<Self, Error> {
        let context = &stream.context;
        let _current = context.enter()?;
        let mut address = DevicePtr::NULL;
        // SAFETY: `address` outlives the call.
        let code = unsafe { (context.api().cuMemAllocAsync)(&raw mut address, bytes, stream.handle) };
        check("cuMemAllocAsync", code)?;
        Ok(Self { stream, address, bytes })
    }

    /// Bytes that the device's default pool holds now and has in use now.
    pub fn pool(context: &Context) -> Result<(u64, u64), Error> {
        let _current = context.enter()?;
        let mut pool = raw::MemoryPool::NULL;
        // SAFETY: `pool` outlives the call.
        let code = unsafe { (context.api().cuDeviceGetDefaultMemPool)(&raw mut pool, context.device().id()) };
        check("cuDeviceGetDefaultMemPool", code)?;
        let read = |attribute| {
            let mut bytes = 0_u64;
            let value: *mut c_void = (&raw mut bytes).cast();
            // SAFETY: the attribute is of 64 bits, and `bytes` outlives the call.
            let code = unsafe { (context.api().cuMemPoolGetAttribute)(pool, attribute, value) };
            check("cuMemPoolGetAttribute", code).map(|()| bytes)
        };
        Ok((read(raw::pool_attribute::RESERVED_CURRENT)?, read(raw::pool_attribute::USED_CURRENT)?))
    }
}

impl DeviceMemory for Ordered<'_> {
    fn address(&self) -> DevicePtr {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Ordered<'_> {
    fn drop(&mut self) {
        let context = &self.stream.context;
        let Ok(_current) = context.enter() else { return };
        // SAFETY: allocated when this was made, and freed here alone, behind all that its stream was given.
        unsafe { (context.api().cuMemFreeAsync)(self.address, self.stream.handle) };
    }
}

/// What a query says: done, not yet, or an error.
fn finished(call: &'static str, code: Code) -> Result<bool, Error> {
    if code == Code::NOT_READY { Ok(false) } else { check(call, code).map(|()| true) }
}
