//! Primary contexts, and what is done in them that is finished when the call returns.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::api::Api;
use crate::device::Device;
use crate::error::Error;
use crate::library::check;
use crate::raw::{self, DevicePtr};

/// A device's primary context, retained. Clones are the same retention, given back with the last of them.
#[derive(Clone, Debug)]
pub struct Context(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: Device,
    handle: raw::Context,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: retained when this was made, and given back here alone. A failure leaves the context, no more.
        unsafe { (self.device.driver().api().cuDevicePrimaryCtxRelease_v2)(self.device.id()) };
    }
}

/// Memory that a [`Context`] can copy from and to.
pub trait DeviceMemory {
    /// Where it begins.
    fn address(&self) -> DevicePtr;
    /// How many bytes it has.
    fn bytes(&self) -> usize;

    /// The address of byte `offset`, if `length` bytes from there are within.
    fn range(&self, offset: usize, length: usize) -> Result<DevicePtr, Error> {
        match offset.checked_add(length) {
            Some(end) if end <= self.bytes() => Ok(DevicePtr(self.address().0 + offset)),
            _ => Err(Error::Range { offset, length, size: self.bytes() }),
        }
    }
}

/// As long as this is there, the context is the calling thread's current one.
pub struct Current<'a> {
    context: &'a Context,
    // The current context is the thread's own.
    not_send: PhantomData<*const ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = raw::Context::NULL;
        // SAFETY: this thread pushed it, and `popped` outlives the call.
        unsafe { (self.context.api().cuCtxPopCurrent_v2)(&raw mut popped) };
    }
}

impl Context {
    pub(crate) fn retain(device: Device) -> Result<Self, Error> {
        let mut handle = raw::Context::NULL;
        // SAFETY: `handle` outlives the call.
        let code = unsafe { (device.driver().api().cuDevicePrimaryCtxRetain)(&raw mut handle, device.id()) };
        check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Self(Arc::new(Inner { device, handle })))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The driver's handle.
    #[must_use]
    pub fn handle(&self) -> raw::Context {
        self.0.handle
    }

    pub(crate) fn api(&self) -> &Api {
        self.device().driver().api()
    }

    /// Makes it the current one until the guard is dropped.
    pub fn enter(&self) -> Result<Current<'_>, Error> {
        // SAFETY: the context is retained as long as `self` is there.
        check("cuCtxPushCurrent_v2", unsafe { (self.api().cuCtxPushCurrent_v2)(self.handle()) })?;
        Ok(Current { context: self, not_send: PhantomData })
    }

    /// Waits for all work of the context.
    pub fn synchronize(&self) -> Result<(), Error> {
        let _current = self.enter()?;
        // SAFETY: takes nothing.
        check("cuCtxSynchronize", unsafe { (self.api().cuCtxSynchronize)() })
    }

    /// Free and total bytes of the device.
    pub fn memory(&self) -> Result<(usize, usize), Error> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both numbers outlive the call.
        check("cuMemGetInfo_v2", unsafe { (self.api().cuMemGetInfo_v2)(&raw mut free, &raw mut total) })?;
        Ok((free, total))
    }

    /// Writes `bytes` from byte `offset` on.
    pub fn write(&self, to: &impl DeviceMemory, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let address = to.range(offset, bytes.len())?;
        let _current = self.enter()?;
        // SAFETY: the range is within memory that `to` owns, and `bytes` outlives the call, at whose end it was read.
        let code = unsafe { (self.api().cuMemcpyHtoD_v2)(address, bytes.as_ptr().cast(), bytes.len()) };
        check("cuMemcpyHtoD_v2", code)?;
        // The bytes were read, but may still be on their way: `to` might be dropped next.
        self.settle()
    }

    /// Reads `bytes.len()` bytes from byte `offset` on.
    pub fn read(&self, from: &impl DeviceMemory, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let address = from.range(offset, bytes.len())?;
        let _current = self.enter()?;
        // SAFETY: the range is within memory that `from` owns; `bytes` outlives the call, at whose end it was written.
        let code = unsafe { (self.api().cuMemcpyDtoH_v2)(bytes.as_mut_ptr().cast(), address, bytes.len()) };
        check("cuMemcpyDtoH_v2", code)
    }

    /// Writes `value` to `length` bytes from byte `offset` on.
    pub fn fill(&self, to: &impl DeviceMemory, offset: usize, length: usize, value: u8) -> Result<(), Error> {
        let address = to.range(offset, length)?;
        let _current = self.enter()?;
        // SAFETY: the range is within memory that `to` owns, which the caller holds until the work is finished.
        let code = unsafe { (self.api().cuMemsetD8Async)(address, value, length, raw::Stream::LEGACY) };
        check("cuMemsetD8Async", code)?;
        self.settle()
    }

    /// Copies `length` bytes between memory of the device.
    pub fn copy(
        &self,
        (to, to_offset): (&impl DeviceMemory, usize),
        (from, from_offset): (&impl DeviceMemory, usize),
        length: usize,
    ) -> Result<(), Error> {
        let (target, source) = (to.range(to_offset, length)?, from.range(from_offset, length)?);
        let _current = self.enter()?;
        // SAFETY: both ranges are within memory that `to` and `from` own, held until the work is finished.
        let code = unsafe { (self.api().cuMemcpyDtoDAsync_v2)(target, source, length, raw::Stream::LEGACY) };
        check("cuMemcpyDtoDAsync_v2", code)?;
        self.settle()
    }

    /// Waits for the default stream, with this context current.
    fn settle(&self) -> Result<(), Error> {
        // SAFETY: the default stream is always there.
        check("cuStreamSynchronize", unsafe { (self.api().cuStreamSynchronize)(raw::Stream::LEGACY) })
    }
}
