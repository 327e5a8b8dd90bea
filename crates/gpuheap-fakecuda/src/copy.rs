//! Copies and fills, in all the forms in which programs ask for them.
//!
//! Addresses are looked at twice: when the work is given, as the real driver does (an address that it does not know is
//! an invalid value), and when it is done: what is gone by then is an illegal address, and the context is lost.

use std::ffi::c_void;
use std::sync::Arc;

use gpuheap_cuda::raw::{self, Code, DevicePtr, Memcpy2d, Memcpy3d, memory_type};

use crate::entry::{Done, stream_exports};
use crate::pages;
use crate::space::{Kind, Reach};
use crate::state::{State, lock, ready};
use crate::work::{self, Work};

/// One side of a copy: rows of bytes, in slices.
#[derive(Clone, Copy, Debug)]
struct Side {
    start: usize,
    pitch: usize,
    slice: usize,
    /// Memory of the program, which the driver need not know.
    host: bool,
}

impl Side {
    fn plain(start: usize, host: bool) -> Self {
        Self { start, pitch: 0, slice: 0, host }
    }

    fn row(&self, row: usize, slice: usize) -> usize {
        self.start + slice * self.slice + row * self.pitch
    }
}

/// How many bytes, rows and slices.
#[derive(Clone, Copy, Debug)]
struct Extent {
    width: usize,
    height: usize,
    depth: usize,
}

impl Extent {
    fn bytes(bytes: usize) -> Self {
        Self { width: bytes, height: 1, depth: 1 }
    }

    fn rows(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.depth).flat_map(move |slice| (0..self.height).map(move |row| (row, slice)))
    }
}

impl State {
    /// Whether all rows of a side can be reached.
    fn reaches(&self, device: usize, side: Side, extent: Extent, write: bool) -> bool {
        extent.width == 0
            || extent.rows().all(|(row, slice)| {
                match self.space.reach(device, side.row(row, slice), extent.width, write) {
                    Reach::Yes => true,
                    Reach::No => false,
                    Reach::Unknown => side.host,
                }
            })
    }

    /// Whether the program could change or read it before the driver is done with it.
    fn is_pageable(&self, side: Side) -> bool {
        self.space.range_at(side.start).is_none_or(|(_, range)| !matches!(range.kind, Kind::Host | Kind::Registered))
            && self.space.mapping_at(side.start).is_none()
            && side.host
    }
}

/// Gives a stream a copy; `now` if the call returns after it.
fn copy(to: Side, from: Side, extent: Extent, stream: raw::Stream, thread: bool, now: bool) -> Done {
    let mut state = ready()?;
    let stream = state.stream(stream, thread)?;
    let context = state.streams[&stream].context;
    let device = state.context(context)?.device;
    if now {
        state.forbid_while_capturing(context)?;
    }
    if !state.reaches(device, to, extent, true) || !state.reaches(device, from, extent, false) {
        return Err(Code::INVALID_VALUE);
    }
    let capturing = state.streams[&stream].capture.is_some();
    // Pageable memory is read before the call returns, and written before it returns.
    let staged = (state.is_pageable(from) && !capturing).then(|| {
        let mut bytes = vec![0_u8; extent.width * extent.height * extent.depth];
        for (number, (row, slice)) in extent.rows().enumerate() {
            let part = bytes[number * extent.width..].as_mut_ptr().expose_provenance();
            pages::copy(part, from.row(row, slice), extent.width);
        }
        bytes
    });
    let waits = (now || state.is_pageable(to)) && !capturing;
    let work: Work = Arc::new(move || {
        let state = lock();
        let staged_reach = staged.is_some() || state.reaches(device, from, extent, false);
        if !staged_reach || !state.reaches(device, to, extent, true) {
            return Err(Code::ILLEGAL_ADDRESS);
        }
        for (number, (row, slice)) in extent.rows().enumerate() {
            let source = match &staged {
                Some(bytes) => bytes[number * extent.width..].as_ptr().expose_provenance(),
                None => from.row(row, slice),
            };
            pages::copy(to.row(row, slice), source, extent.width);
        }
        Ok(())
    });
    state.submit(stream, Vec::new(), Some(work))?;
    if !capturing {
        state.crosses(to.start, from.start, stream);
    }
    if waits {
        let given = state.streams[&stream].given;
        return work::wait_for(state, &[(stream, given)]).usable(context);
    }
    Ok(())
}

/// Gives a stream a fill with a pattern.
fn fill(address: usize, pitch: usize, pattern: &[u8], width: usize, height: usize, place: (raw::Stream, bool)) -> Done {
    let mut state = ready()?;
    let stream = state.stream(place.0, place.1)?;
    let device = state.context(state.streams[&stream].context)?.device;
    let bytes = width.checked_mul(pattern.len()).ok_or(Code::INVALID_VALUE)?;
    if !address.is_multiple_of(pattern.len()) || (height > 1 && pitch < bytes) {
        return Err(Code::INVALID_VALUE);
    }
    let side = Side { start: address, pitch, slice: 0, host: false };
    let extent = Extent { width: bytes, height, depth: 1 };
    if !state.reaches(device, side, extent, true) {
        return Err(Code::INVALID_VALUE);
    }
    let pattern = pattern.to_vec();
    let work: Work = Arc::new(move || {
        let state = lock();
        if !state.reaches(device, side, extent, true) {
            return Err(Code::ILLEGAL_ADDRESS);
        }
        for (row, slice) in extent.rows() {
            pages::fill(side.row(row, slice), &pattern, bytes);
        }
        Ok(())
    });
    state.submit(stream, Vec::new(), Some(work))
}

/// A side of a described copy. Arrays are opaque here.
fn described(
    kind: u32,
    host: *const c_void,
    device: DevicePtr,
    offset: usize,
    pitch: usize,
    slice: usize,
) -> Result<Side, Code> {
    let (start, host) = match kind {
        memory_type::HOST => (host.expose_provenance(), true),
        memory_type::DEVICE => (device.0, false),
        memory_type::UNIFIED => (device.0, true),
        memory_type::ARRAY => return Err(Code::NOT_SUPPORTED),
        _ => return Err(Code::INVALID_VALUE),
    };
    Ok(Side { start: start + offset, pitch, slice, host })
}

fn copy_2d(wanted: Option<&Memcpy2d>, stream: raw::Stream, thread: bool, now: bool) -> Done {
    let it = wanted.ok_or(Code::INVALID_VALUE)?;
    let from_offset = it.src_y * it.src_pitch + it.src_x_bytes;
    let to_offset = it.dst_y * it.dst_pitch + it.dst_x_bytes;
    let from = described(it.src_type, it.src_host, it.src_device, from_offset, it.src_pitch, 0)?;
    let to = described(it.dst_type, it.dst_host, it.dst_device, to_offset, it.dst_pitch, 0)?;
    if it.height > 1 && (it.src_pitch < it.width_bytes || it.dst_pitch < it.width_bytes) {
        return Err(Code::INVALID_VALUE);
    }
    copy(to, from, Extent { width: it.width_bytes, height: it.height, depth: 1 }, stream, thread, now)
}

fn copy_3d(wanted: Option<&Memcpy3d>, stream: raw::Stream, thread: bool, now: bool) -> Done {
    let it = wanted.ok_or(Code::INVALID_VALUE)?;
    let (from_slice, to_slice) = (it.src_pitch * it.src_height, it.dst_pitch * it.dst_height);
    let from_offset = it.src_z * from_slice + it.src_y * it.src_pitch + it.src_x_bytes;
    let to_offset = it.dst_z * to_slice + it.dst_y * it.dst_pitch + it.dst_x_bytes;
    let from = described(it.src_type, it.src_host, it.src_device, from_offset, it.src_pitch, from_slice)?;
    let to = described(it.dst_type, it.dst_host, it.dst_device, to_offset, it.dst_pitch, to_slice)?;
    copy(to, from, Extent { width: it.width_bytes, height: it.height, depth: it.depth }, stream, thread, now)
}

const DEFAULT: raw::Stream = raw::Stream::NULL;

stream_exports! {
    fn cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds [thread] (to: DevicePtr, from: *const c_void, bytes: usize) {
        let from = Side::plain(from.expose_provenance(), true);
        copy(Side::plain(to.0, false), from, Extent::bytes(bytes), DEFAULT, thread, true)
    }

    fn cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds [thread] (to: *mut c_void, from: DevicePtr, bytes: usize) {
        let to = Side::plain(to.expose_provenance(), true);
        copy(to, Side::plain(from.0, false), Extent::bytes(bytes), DEFAULT, thread, true)
    }

    fn cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds [thread] (to: DevicePtr, from: DevicePtr, bytes: usize) {
        copy(Side::plain(to.0, false), Side::plain(from.0, false), Extent::bytes(bytes), DEFAULT, thread, false)
    }

    fn cuMemcpy / cuMemcpy_ptds [thread] (to: DevicePtr, from: DevicePtr, bytes: usize) {
        copy(Side::plain(to.0, true), Side::plain(from.0, true), Extent::bytes(bytes), DEFAULT, thread, true)
    }

    fn cuMemcpyPeer / cuMemcpyPeer_ptds [thread] (
        to: DevicePtr, _there: raw::Context, from: DevicePtr, _here: raw::Context, bytes: usize,
    ) {
        copy(Side::plain(to.0, false), Side::plain(from.0, false), Extent::bytes(bytes), DEFAULT, thread, false)
    }

    fn cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds [thread] (wanted: Option<&Memcpy2d>) {
        copy_2d(wanted, DEFAULT, thread, true)
    }

    fn cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds [thread] (wanted: Option<&Memcpy2d>) {
        copy_2d(wanted, DEFAULT, thread, true)
    }

    fn cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds [thread] (wanted: Option<&Memcpy3d>) {
        copy_3d(wanted, DEFAULT, thread, true)
    }

    fn cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz [thread] (
        to: DevicePtr, from: *const c_void, bytes: usize, stream: raw::Stream,
    ) {
        let from = Side::plain(from.expose_provenance(), true);
        copy(Side::plain(to.0, false), from, Extent::bytes(bytes), stream, thread, false)
    }

    fn cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz [thread] (
        to: *mut c_void, from: DevicePtr, bytes: usize, stream: raw::Stream,
    ) {
        let to = Side::plain(to.expose_provenance(), true);
        copy(to, Side::plain(from.0, false), Extent::bytes(bytes), stream, thread, false)
    }

    fn cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz [thread] (
        to: DevicePtr, from: DevicePtr, bytes: usize, stream: raw::Stream,
    ) {
        copy(Side::plain(to.0, false), Side::plain(from.0, false), Extent::bytes(bytes), stream, thread, false)
    }

    fn cuMemcpyAsync / cuMemcpyAsync_ptsz [thread] (to: DevicePtr, from: DevicePtr, bytes: usize, stream: raw::Stream) {
        copy(Side::plain(to.0, true), Side::plain(from.0, true), Extent::bytes(bytes), stream, thread, false)
    }

    fn cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz [thread] (
        to: DevicePtr, _there: raw::Context, from: DevicePtr, _here: raw::Context, bytes: usize, stream: raw::Stream,
    ) {
        copy(Side::plain(to.0, false), Side::plain(from.0, false), Extent::bytes(bytes), stream, thread, false)
    }

    fn cuMemcpy2DAsync_v2 / cuMemcpy2DAsync_v2_ptsz [thread] (wanted: Option<&Memcpy2d>, stream: raw::Stream) {
        copy_2d(wanted, stream, thread, false)
    }

    fn cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz [thread] (wanted: Option<&Memcpy3d>, stream: raw::Stream) {
        copy_3d(wanted, stream, thread, false)
    }

    fn cuMemsetD8_v2 / cuMemsetD8_v2_ptds [thread] (to: DevicePtr, value: u8, count: usize) {
        fill(to.0, 0, &[value], count, 1, (DEFAULT, thread))
    }

    fn cuMemsetD16_v2 / cuMemsetD16_v2_ptds [thread] (to: DevicePtr, value: u16, count: usize) {
        fill(to.0, 0, &value.to_ne_bytes(), count, 1, (DEFAULT, thread))
    }

    fn cuMemsetD32_v2 / cuMemsetD32_v2_ptds [thread] (to: DevicePtr, value: u32, count: usize) {
        fill(to.0, 0, &value.to_ne_bytes(), count, 1, (DEFAULT, thread))
    }

    fn cuMemsetD2D8_v2 / cuMemsetD2D8_v2_ptds [thread] (
        to: DevicePtr, pitch: usize, value: u8, width: usize, height: usize,
    ) {
        fill(to.0, pitch, &[value], width, height, (DEFAULT, thread))
    }

    fn cuMemsetD2D16_v2 / cuMemsetD2D16_v2_ptds [thread] (
        to: DevicePtr, pitch: usize, value: u16, width: usize, height: usize,
    ) {
        fill(to.0, pitch, &value.to_ne_bytes(), width, height, (DEFAULT, thread))
    }

    fn cuMemsetD2D32_v2 / cuMemsetD2D32_v2_ptds [thread] (
        to: DevicePtr, pitch: usize, value: u32, width: usize, height: usize,
    ) {
        fill(to.0, pitch, &value.to_ne_bytes(), width, height, (DEFAULT, thread))
    }

    fn cuMemsetD8Async / cuMemsetD8Async_ptsz [thread] (to: DevicePtr, value: u8, count: usize, stream: raw::Stream) {
        fill(to.0, 0, &[value], count, 1, (stream, thread))
    }

    fn cuMemsetD16Async / cuMemsetD16Async_ptsz [thread] (to: DevicePtr, value: u16, count: usize, stream: raw::Stream) {
        fill(to.0, 0, &value.to_ne_bytes(), count, 1, (stream, thread))
    }

    fn cuMemsetD32Async / cuMemsetD32Async_ptsz [thread] (to: DevicePtr, value: u32, count: usize, stream: raw::Stream) {
        fill(to.0, 0, &value.to_ne_bytes(), count, 1, (stream, thread))
    }

    fn cuMemsetD2D8Async / cuMemsetD2D8Async_ptsz [thread] (
        to: DevicePtr, pitch: usize, value: u8, width: usize, height: usize, stream: raw::Stream,
    ) {
        fill(to.0, pitch, &[value], width, height, (stream, thread))
    }

    fn cuMemsetD2D16Async / cuMemsetD2D16Async_ptsz [thread] (
        to: DevicePtr, pitch: usize, value: u16, width: usize, height: usize, stream: raw::Stream,
    ) {
        fill(to.0, pitch, &value.to_ne_bytes(), width, height, (stream, thread))
    }

    fn cuMemsetD2D32Async / cuMemsetD2D32Async_ptsz [thread] (
        to: DevicePtr, pitch: usize, value: u32, width: usize, height: usize, stream: raw::Stream,
    ) {
        fill(to.0, pitch, &value.to_ne_bytes(), width, height, (stream, thread))
    }
}
