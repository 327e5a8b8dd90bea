//! Contexts: a device's primary one, others, and which is current.

use std::ffi::{c_int, c_uint, c_void};

use gpuheap_cuda::raw::{self, Code, DeviceId};

use crate::arena::Arena;
use crate::entry::{Done, Out, exports, give, offer};
use crate::state::{self, CURRENT, Context, State, ready};
use crate::work::{self, Kind};

exports! {
    fn cuDevicePrimaryCtxRetain(context: Out<'_, raw::Context>, device: DeviceId) {
        let mut state = ready()?;
        let device = state.device(device)?;
        let handle = match state.devices[device].primary {
            Some(handle) => handle,
            None => state.handle(),
        };
        if state.contexts.get(&handle).is_none_or(|context| context.references == 0) {
            state.open(handle, device, true)?;
            state.devices[device].primary = Some(handle);
        } else if let Some(context) = state.contexts.get_mut(&handle) {
            context.references += 1;
        }
        give(context, raw::Context(handle))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: DeviceId) {
        release(device)
    }

    fn cuDevicePrimaryCtxRelease(device: DeviceId) {
        release(device)
    }

    fn cuDevicePrimaryCtxReset_v2(device: DeviceId) {
        reset(device)
    }

    fn cuDevicePrimaryCtxReset(device: DeviceId) {
        reset(device)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: DeviceId, _flags: c_uint) {
        ready()?.device(device).map(drop)
    }

    fn cuDevicePrimaryCtxGetState(device: DeviceId, flags: Out<'_, c_uint>, active: Out<'_, c_int>) {
        let state = ready()?;
        let device = state.device(device)?;
        let there = state.primary(device).is_some();
        offer(flags, 0);
        give(active, c_int::from(there))
    }

    fn cuCtxCreate_v2(context: Out<'_, raw::Context>, _flags: c_uint, device: DeviceId) {
        create(context, device)
    }

    fn cuCtxCreate_v4(context: Out<'_, raw::Context>, _wanted: *const c_void, _flags: c_uint, device: DeviceId) {
        create(context, device)
    }

    fn cuCtxDestroy_v2(context: raw::Context) {
        let mut state = ready()?;
        if state.context(context.0)?.primary {
            return Err(Code::INVALID_CONTEXT);
        }
        CURRENT.with_borrow_mut(|stack| {
            if stack.last() == Some(&context.0) {
                stack.pop();
            }
        });
        state = close(state, context.0);
        drop(state);
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: raw::Context) {
        ready()?.context(context.0)?;
        CURRENT.with_borrow_mut(|stack| stack.push(context.0));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<'_, raw::Context>) {
        drop(ready()?);
        let popped = CURRENT.with_borrow_mut(Vec::pop).ok_or(Code::INVALID_CONTEXT)?;
        offer(context, raw::Context(popped));
        Ok(())
    }

    fn cuCtxSetCurrent(context: raw::Context) {
        let state = ready()?;
        if !context.is_null() {
            state.context(context.0)?;
        }
        CURRENT.with_borrow_mut(|stack| {
            stack.pop();
            if !context.is_null() {
                stack.push(context.0);
            }
        });
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<'_, raw::Context>) {
        drop(ready()?);
        let current = CURRENT.with_borrow(|stack| stack.last().copied());
        give(context, raw::Context(current.unwrap_or(0)))
    }

    fn cuCtxGetDevice(device: Out<'_, DeviceId>) {
        let state = ready()?;
        let current = CURRENT.with_borrow(|stack| stack.last().copied()).ok_or(Code::INVALID_CONTEXT)?;
        let found = state.context(current)?.device;
        give(device, DeviceId::try_from(found).unwrap_or(DeviceId::MAX))
    }

    fn cuCtxGetDevice_v2(device: Out<'_, DeviceId>, context: raw::Context) {
        let state = ready()?;
        let found = if context.is_null() { state.current_device()?.1 } else { state.context(context.0)?.device };
        give(device, DeviceId::try_from(found).unwrap_or(DeviceId::MAX))
    }

    fn cuCtxGetFlags(flags: Out<'_, c_uint>) {
        ready()?.current()?;
        give(flags, 0)
    }

    fn cuCtxGetApiVersion(context: raw::Context, version: Out<'_, c_uint>) {
        let state = ready()?;
        if !context.is_null() {
            state.context(context.0)?;
        }
        give(version, 3020)
    }

    fn cuCtxGetId(context: raw::Context, id: Out<'_, u64>) {
        let state = ready()?;
        let handle = if context.is_null() { state.current()? } else { context.0 };
        give(id, state.context(handle)?.id)
    }

    fn cuCtxGetLimit(value: Out<'_, usize>, _limit: c_uint) {
        ready()?.current()?;
        give(value, 1024)
    }

    fn cuCtxSetLimit(_limit: c_uint, _value: usize) {
        ready()?.current().map(drop)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<'_, c_int>, greatest: Out<'_, c_int>) {
        ready()?.current()?;
        offer(least, 0);
        offer(greatest, -5);
        Ok(())
    }

    fn cuCtxSynchronize() {
        let context = ready()?.current()?;
        synchronize(context)
    }

    fn cuCtxSynchronize_v2(context: raw::Context) {
        let context = if context.is_null() { ready()?.current()? } else { context.0 };
        synchronize(context)
    }

    fn cuCtxEnablePeerAccess(context: raw::Context, _flags: c_uint) {
        let state = ready()?;
        state.current()?;
        state.context(context.0).map(drop)
    }

    fn cuCtxDisablePeerAccess(context: raw::Context) {
        let state = ready()?;
        state.current()?;
        state.context(context.0).map(drop)
    }
}

fn create(out: Out<'_, raw::Context>, device: DeviceId) -> Done {
    let mut state = ready()?;
    let device = state.device(device)?;
    let handle = state.handle();
    state.open(handle, device, false)?;
    CURRENT.with_borrow_mut(|stack| stack.push(handle));
    give(out, raw::Context(handle))
}

fn release(device: DeviceId) -> Done {
    let mut state = ready()?;
    let device = state.device(device)?;
    let handle = state.primary(device).ok_or(Code::INVALID_CONTEXT)?;
    let context = state.contexts.get_mut(&handle).ok_or(Code::INVALID_CONTEXT)?;
    if context.references > 1 {
        context.references -= 1;
    } else {
        drop(close(state, handle));
    }
    Ok(())
}

fn reset(device: DeviceId) -> Done {
    let state = ready()?;
    let device = state.device(device)?;
    if let Some(handle) = state.primary(device) {
        let references = state.contexts.get(&handle).map_or(0, |context| context.references);
        let mut state = close(state, handle);
        // Those who retained it still hold it: it starts anew.
        state.open(handle, device, true)?;
        if let Some(context) = state.contexts.get_mut(&handle) {
            context.references = references;
        }
    }
    Ok(())
}

fn synchronize(context: usize) -> Done {
    let state = ready()?;
    state.usable(context)?;
    state.forbid_while_capturing(context)?;
    let pieces = state.last_pieces(context);
    let mut state = work::wait_for(state, &pieces);
    let device = state.context(context)?.device;
    state.trim_pools(device);
    state.usable(context)
}

/// Ends a context with all that is in it, when its work is done.
fn close(state: std::sync::MutexGuard<'static, State>, handle: usize) -> std::sync::MutexGuard<'static, State> {
    let pieces = state.last_pieces(handle);
    let mut state = work::wait_for(state, &pieces);
    for (stream, _) in pieces {
        state.close_stream(stream);
    }
    state.events.retain(|_, event| event.context != handle);
    state.threads.retain(|(context, ..)| *context != handle);
    state.modules.retain(|_, module| module.context != handle);
    state.drop_functions();
    state.drop_ranges(handle);
    state.drop_arrays(handle);
    let bytes = state.config.context_bytes;
    if let Some(context) = state.contexts.get_mut(&handle) {
        context.references = 0;
        let (device, primary) = (context.device, context.primary);
        state.refund(device, bytes);
        if primary {
            state.empty_pools(device);
        }
    }
    state::CHANGED.notify_all();
    state
}

impl State {
    /// The primary context of a device, if it is there.
    pub(crate) fn primary(&self, device: usize) -> Option<usize> {
        let handle = self.devices[device].primary?;
        self.contexts.get(&handle).filter(|context| context.references > 0).map(|_| handle)
    }

    fn open(&mut self, handle: usize, device: usize, primary: bool) -> Done {
        let bytes = self.config.context_bytes;
        self.charge(device, bytes)?;
        let legacy = self.add_stream(handle, Kind::Legacy, 0);
        let small = Arena::default();
        let id = self.handle() as u64;
        let context = Context { device, id, primary, references: 1, failed: None, legacy, small };
        self.contexts.insert(handle, context);
        Ok(())
    }
}
