//! Copies between a device and the host, begun and waited for.

use gpuheap_cuda::raw::{Code, DevicePtr};
use gpuheap_cuda::raw::{Event, Stream};
use gpuheap_cuda::{Error, check};

use super::mappings::surely;
use super::{Mover, Store};

impl Mover<'_> {
    /// Begins to copy content to the host.
    pub(super) fn save(&self, store: &Store, from: DevicePtr, bytes: usize) -> Result<(), Error> {
        let (_current, api, stream) = (self.context.enter()?, self.moving.api(), self.lanes.outward);
        match store {
            Store::Mapped(piece) => {
                // SAFETY: both are mapped for that many bytes, for this device, and stay so until the copy is waited for.
                let code = surely(|| unsafe { (api.cuMemcpyDtoDAsync_v2)(piece.window(), from, bytes, stream) });
                check("cuMemcpyDtoDAsync_v2", code)
            }
            Store::Locked(piece) => {
                // SAFETY: as above; the host's memory is locked.
                let code = surely(|| unsafe { (api.cuMemcpyDtoHAsync_v2)(piece.start(), from, bytes, stream) });
                check("cuMemcpyDtoHAsync_v2", code)
            }
        }
    }

    /// Begins to copy content from the host.
    pub(super) fn load(&self, to: DevicePtr, store: &Store, bytes: usize) -> Result<(), Error> {
        let (_current, api, stream) = (self.context.enter()?, self.moving.api(), self.lanes.inward);
        match store {
            Store::Mapped(piece) => {
                // SAFETY: as for `save`.
                let code = surely(|| unsafe { (api.cuMemcpyDtoDAsync_v2)(to, piece.window(), bytes, stream) });
                check("cuMemcpyDtoDAsync_v2", code)
            }
            Store::Locked(piece) => {
                // SAFETY: as for `save`.
                let code = surely(|| unsafe { (api.cuMemcpyHtoDAsync_v2)(to, piece.start(), bytes, stream) });
                check("cuMemcpyHtoDAsync_v2", code)
            }
        }
    }

    /// Puts an event behind all that a stream was given so far. If that fails, all of it is waited for.
    pub(super) fn mark(&self, event: Event, stream: Stream) {
        let marked = self.in_context("cuEventRecord", || {
            // SAFETY: both are there as long as the mover has them.
            unsafe { (self.moving.api().cuEventRecord)(event, stream) }
        });
        if marked.is_err() {
            // What that says the event would say as well, once it is waited for: it was the context's.
            let _ = self.finish(stream);
        }
    }

    /// Waits for an event.
    pub(super) fn reach(&self, event: Event) -> Result<(), Error> {
        self.waited("cuEventSynchronize", || {
            // SAFETY: the event is there as long as the mover has it.
            unsafe { (self.moving.api().cuEventSynchronize)(event) }
        })
    }

    /// Waits for all that a stream was given so far.
    pub(super) fn finish(&self, stream: Stream) -> Result<(), Error> {
        self.waited("cuStreamSynchronize", || {
            // SAFETY: the stream is there as long as the mover has it.
            unsafe { (self.moving.api().cuStreamSynchronize)(stream) }
        })
    }

    /// A wait. One that failed has said something of the context, which these streams are of.
    fn waited(&self, call: &'static str, wait: impl Fn() -> Code) -> Result<(), Error> {
        self.in_context(call, || surely(&wait)).inspect_err(|_| self.is_broken.set(true))
    }

    fn in_context(&self, call: &'static str, work: impl FnOnce() -> Code) -> Result<(), Error> {
        let _current = self.context.enter()?;
        check(call, work())
    }
}
