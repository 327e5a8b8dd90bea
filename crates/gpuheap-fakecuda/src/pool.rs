//! Pools, and memory that is given and taken in a stream's order.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use gpuheap_cuda::raw::{self, AccessDesc, Code, DevicePtr, MemoryPool, PoolProps, pool_attribute};

use crate::arena::Arena;
use crate::entry::{Done, Out, exports, give, stream_exports};
use crate::pages::{self, Backing, GRANULARITY, round_up};
use crate::space::Kind;
use crate::state::{State, lock, ready};
use crate::work::Work;

/// What a pool takes from the device at once, unless more is asked for.
const CHUNK: usize = 32 << 20;
/// What blocks are multiples of.
const UNIT: usize = 512;

/// A pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) device: usize,
    /// Whether it is the device's own, which cannot be destroyed.
    default: bool,
    arena: Arena,
    threshold: u64,
    used: usize,
    used_high: usize,
    held_high: usize,
    max: usize,
}

exports! {
    fn cuMemPoolCreate(pool: Out<'_, MemoryPool>, props: Option<&PoolProps>) {
        let mut state = ready()?;
        let props = props.ok_or(Code::INVALID_VALUE)?;
        if props.kind != raw::ALLOCATION_PINNED || props.location.kind != raw::location::DEVICE {
            return Err(Code::INVALID_VALUE);
        }
        let device = state.device(props.location.id)?;
        let made = state.add_pool(device, false, props.max_size);
        give(pool, MemoryPool(made))
    }

    fn cuMemPoolDestroy(pool: MemoryPool) {
        let mut state = ready()?;
        let found = state.pools.get(&pool.0).ok_or(Code::INVALID_VALUE)?;
        if found.default {
            return Err(Code::INVALID_VALUE);
        }
        let device = found.device;
        if state.devices[device].current_pool == Some(pool.0) {
            state.devices[device].current_pool = None;
        }
        // What it gave out goes with its last block; here, at once if there is none.
        state.trim_pool(pool.0, 0);
        if state.pools.get(&pool.0).is_some_and(|pool| pool.arena.held() == 0) {
            state.pools.remove(&pool.0);
        }
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: MemoryPool, keep: usize) {
        let mut state = ready()?;
        if !state.pools.contains_key(&pool.0) {
            return Err(Code::INVALID_VALUE);
        }
        state.trim_pool(pool.0, keep);
        Ok(())
    }

    fn cuMemPoolSetAttribute(pool: MemoryPool, attribute: c_uint, value: Option<&u64>) {
        let mut state = ready()?;
        let pool = state.pools.get_mut(&pool.0).ok_or(Code::INVALID_VALUE)?;
        let value = value.ok_or(Code::INVALID_VALUE)?;
        match attribute {
            // Kinds of reuse, 32 bits each, that make no difference here.
            1..=3 => {}
            pool_attribute::RELEASE_THRESHOLD => pool.threshold = *value,
            pool_attribute::RESERVED_HIGH if *value == 0 => pool.held_high = pool.arena.held(),
            pool_attribute::USED_HIGH if *value == 0 => pool.used_high = pool.used,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: MemoryPool, attribute: c_uint, value: *mut c_void) {
        let state = ready()?;
        let pool = state.pools.get(&pool.0).ok_or(Code::INVALID_VALUE)?;
        if value.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let found = match attribute {
            1..=3 => {
                // SAFETY: the caller gives room for 32 bits, as the attribute says.
                unsafe { value.cast::<u32>().write(1) };
                return Ok(());
            }
            pool_attribute::RELEASE_THRESHOLD => pool.threshold,
            pool_attribute::RESERVED_CURRENT => pool.arena.held() as u64,
            pool_attribute::RESERVED_HIGH => pool.held_high as u64,
            pool_attribute::USED_CURRENT => pool.used as u64,
            pool_attribute::USED_HIGH => pool.used_high as u64,
            _ => return Err(Code::INVALID_VALUE),
        };
        // SAFETY: the caller gives room for 64 bits, as the attribute says.
        unsafe { value.cast::<u64>().write(found) };
        Ok(())
    }

    fn cuMemPoolSetAccess(pool: MemoryPool, _access: *const AccessDesc, _count: usize) {
        ready()?.pools.get(&pool.0).map(drop).ok_or(Code::INVALID_VALUE)
    }
}

stream_exports! {
    fn cuMemAllocAsync / cuMemAllocAsync_ptsz [thread] (
        address: Out<'_, DevicePtr>, bytes: usize, stream: raw::Stream,
    ) {
        let mut state = ready()?;
        let stream = state.stream(stream, thread)?;
        let device = state.context(state.streams[&stream].context)?.device;
        let pool = state.current_pool(device);
        state.allocate_ordered(address, bytes, pool, stream)
    }

    fn cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz [thread] (
        address: Out<'_, DevicePtr>, bytes: usize, pool: MemoryPool, stream: raw::Stream,
    ) {
        let mut state = ready()?;
        let stream = state.stream(stream, thread)?;
        state.allocate_ordered(address, bytes, pool.0, stream)
    }

    fn cuMemFreeAsync / cuMemFreeAsync_ptsz [thread] (address: DevicePtr, stream: raw::Stream) {
        let mut state = ready()?;
        let stream = state.stream(stream, thread)?;
        if state.streams[&stream].capture.is_some() {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let range = state.space.ranges.get_mut(&address.0).ok_or(Code::INVALID_VALUE)?;
        match &mut range.kind {
            Kind::Ordered { freed, .. } if !*freed => *freed = true,
            // The real one takes other memory as well.
            Kind::Linear | Kind::Small | Kind::Managed => {}
            _ => return Err(Code::INVALID_VALUE),
        }
        let id = range.id;
        let work: Work = Arc::new(move || {
            let mut state = lock();
            if state.space.ranges.get(&address.0).is_some_and(|range| range.id == id) {
                state.drop_range(address.0)?;
            }
            Ok(())
        });
        state.submit(stream, Vec::new(), Some(work))
    }
}

impl State {
    fn add_pool(&mut self, device: usize, default: bool, max: usize) -> usize {
        let handle = self.handle();
        let arena = Arena::default();
        let pool = Pool { device, default, arena, threshold: 0, used: 0, used_high: 0, held_high: 0, max };
        self.pools.insert(handle, pool);
        handle
    }

    /// The device's own pool.
    pub(crate) fn default_pool(&mut self, device: usize) -> usize {
        if let Some(pool) = self.devices[device].default_pool {
            return pool;
        }
        let pool = self.add_pool(device, true, 0);
        self.devices[device].default_pool = Some(pool);
        pool
    }

    /// The pool for allocations that name none.
    pub(crate) fn current_pool(&mut self, device: usize) -> usize {
        match self.devices[device].current_pool {
            Some(pool) => pool,
            None => self.default_pool(device),
        }
    }

    fn allocate_ordered(&mut self, out: Out<'_, DevicePtr>, bytes: usize, pool: usize, stream: usize) -> Done {
        let out = out.ok_or(Code::INVALID_VALUE)?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if self.streams[&stream].capture.is_some() {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let context = self.streams[&stream].context;
        let taken = round_up(bytes, UNIT)?;
        let device = self.pools.get(&pool).ok_or(Code::INVALID_VALUE)?.device;
        let found = self.pools.get_mut(&pool).and_then(|pool| pool.arena.take(taken));
        let address = match found {
            Some(address) => address,
            None => self.grow_pool(pool, taken)?,
        };
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.used += taken;
            pool.used_high = pool.used_high.max(pool.used);
        }
        self.put_range(address, bytes, taken, Kind::Ordered { pool, freed: false }, (context, device), None);
        out.write(DevicePtr(address));
        Ok(())
    }

    fn grow_pool(&mut self, handle: usize, bytes: usize) -> Result<usize, Code> {
        let pool = self.pools.get(&handle).ok_or(Code::INVALID_VALUE)?;
        let (device, held, max) = (pool.device, pool.arena.held(), pool.max);
        let least = round_up(bytes, GRANULARITY)?;
        // A whole chunk if there is room, else what is needed.
        let mut taken = least.max(CHUNK);
        if self.charge(device, taken).is_err() {
            self.trim_pool(handle, 0);
            taken = least;
            self.charge(device, taken)?;
        }
        let too_many = max != 0 && held + taken > max;
        let mapped = if too_many {
            Err(Code::OUT_OF_MEMORY)
        } else {
            Backing::new(taken).and_then(|backing| backing.map_anywhere())
        };
        let chunk = match mapped {
            Ok(chunk) => chunk,
            Err(code) => {
                self.refund(device, taken);
                return Err(code);
            }
        };
        let pool = self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
        pool.arena.add_chunk(chunk, taken);
        pool.held_high = pool.held_high.max(pool.arena.held());
        pool.arena.take(bytes).ok_or(Code::UNKNOWN)
    }

    /// Takes back what a stream is done with.
    pub(crate) fn give_back_to_pool(&mut self, pool: usize, address: usize, bytes: usize) {
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.arena.give_back(address, bytes);
            pool.used -= bytes;
        }
    }

    fn trim_pool(&mut self, handle: usize, keep: usize) {
        let Some(pool) = self.pools.get_mut(&handle) else { return };
        let device = pool.device;
        for (address, bytes) in pool.arena.trim(keep) {
            pages::unmap(address, bytes);
            self.refund(device, bytes);
        }
    }

    /// What the end of a device's primary context does: pools give back all that nobody has.
    pub(crate) fn empty_pools(&mut self, device: usize) {
        let own: Vec<usize> = self.pools.iter().filter(|(_, pool)| pool.device == device).map(|(at, _)| *at).collect();
        for handle in own {
            self.trim_pool(handle, 0);
        }
    }

    /// What a synchronisation does: pools give back what they hold beyond their thresholds.
    pub(crate) fn trim_pools(&mut self, device: usize) {
        let own = self.pools.iter().filter(|(_, pool)| pool.device == device);
        let own: Vec<(usize, u64)> = own.map(|(handle, pool)| (*handle, pool.threshold)).collect();
        for (handle, threshold) in own {
            self.trim_pool(handle, usize::try_from(threshold).unwrap_or(usize::MAX));
        }
    }
}
