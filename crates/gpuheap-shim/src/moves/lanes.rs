//! Streams and events that moves go by, kept from one move to the next: to make them takes longer than a small move.
//!
//! They belong to a device's primary context and are gone with it. The context is the program's: it is not retained in
//! between, since the program may count on it ending. So what is kept is taken only if the context is the one that it
//! was made in, and forgotten where the program ends or resets it ([`crate::contexts`]).

use std::collections::BTreeMap;
use std::sync::Mutex;

use gpuheap_cuda::raw::{self, Context, DeviceId, Event, Stream};
use gpuheap_cuda::{Api, Error, check};

use super::AHEAD;
use crate::state::lock;

/// Streams and events of a context. Their owner sees to it that they are given back or destroyed.
#[derive(Debug)]
pub(crate) struct Lanes {
    context: Identity,
    /// For what leaves the device, and for what comes to it.
    pub(super) outward: Stream,
    pub(super) inward: Stream,
    pub(super) events: [Event; AHEAD],
}

/// Which context it is: a primary context has the same handle after it was reset, but another number, where the driver
/// has numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    handle: usize,
    number: u64,
}

impl Identity {
    pub(crate) fn of(api: &Api, context: Context) -> Self {
        let mut number = 0;
        if let Some(ask) = api.cuCtxGetId {
            // SAFETY: a context that is there, or was; `number` outlives the call. Of one that is gone it is 0.
            unsafe { ask(context, &raw mut number) };
        }
        Self { handle: context.0, number }
    }

    pub(crate) fn handle(self) -> Context {
        Context(self.handle)
    }
}

impl Lanes {
    /// Makes them in the current context, which is that one.
    fn new(api: &Api, context: Identity) -> Result<Self, Error> {
        let mut lanes = Self { context, outward: Stream::NULL, inward: Stream::NULL, events: [Event::NULL; AHEAD] };
        match lanes.fill(api) {
            Ok(()) => Ok(lanes),
            Err(error) => {
                lanes.destroy(api);
                Err(error)
            }
        }
    }

    fn fill(&mut self, api: &Api) -> Result<(), Error> {
        for stream in [&mut self.outward, &mut self.inward] {
            // SAFETY: `stream` outlives the call.
            check("cuStreamCreate", unsafe { (api.cuStreamCreate)(stream, raw::STREAM_NON_BLOCKING) })?;
        }
        for event in &mut self.events {
            // SAFETY: `event` outlives the call.
            check("cuEventCreate", unsafe { (api.cuEventCreate)(event, raw::EVENT_NO_TIMES) })?;
        }
        Ok(())
    }

    /// All of them; none are left.
    pub(super) fn take(&mut self) -> Self {
        let none =
            Self { context: self.context, outward: Stream::NULL, inward: Stream::NULL, events: [Event::NULL; AHEAD] };
        std::mem::replace(self, none)
    }

    /// Their context is there and is the current one.
    pub(super) fn destroy(self, api: &Api) {
        for stream in [self.outward, self.inward].into_iter().filter(|stream| !stream.is_null()) {
            // SAFETY: made here and destroyed here alone; what it was given is waited for. Errors are of its work.
            unsafe { (api.cuStreamSynchronize)(stream) };
            // SAFETY: as above.
            unsafe { (api.cuStreamDestroy_v2)(stream) };
        }
        for event in self.events.into_iter().filter(|event| !event.is_null()) {
            // SAFETY: as above.
            unsafe { (api.cuEventDestroy_v2)(event) };
        }
    }
}

/// Those that nobody uses just now, by device.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<BTreeMap<DeviceId, Lanes>>);

impl Kept {
    /// Those of a device's primary context, which is there and current.
    pub(super) fn take(&self, api: &Api, device: DeviceId, context: Context) -> Result<Lanes, Error> {
        let wanted = Identity::of(api, context);
        let kept = lock(&self.0).remove(&device);
        match kept {
            Some(lanes) if lanes.context == wanted => Ok(lanes),
            // Of a context that is gone, and they with it.
            _ => Lanes::new(api, wanted),
        }
    }

    /// For the next.
    pub(super) fn give(&self, device: DeviceId, lanes: Lanes) {
        lock(&self.0).insert(device, lanes);
    }

    /// The device's primary context is gone, and they with it.
    pub(crate) fn forget(&self, device: DeviceId) {
        lock(&self.0).remove(&device);
    }
}
