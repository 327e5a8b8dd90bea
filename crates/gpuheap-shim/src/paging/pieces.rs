//! Physical memory that a program asked for as one piece, and of which not all fits on the device. As one it would be on the
//! host as a whole, and could only come to the device as a whole: frameworks that take memory in regions of gigabytes (XLA
//! does) would have all of it there. So it is made of pieces, each of which is somewhere for itself. It cannot be passed on
//! to other processes, as nothing can that is on the host.

use std::sync::Arc;

use gpuheap_cuda::raw::{AllocationHandle, AllocationProp, Code, DevicePtr};

use crate::charge::Kind;
use crate::chunks::Chunk;
use crate::converted::{self, PIECE};
use crate::moves;
use crate::moving::Moving;

/// See the head of the file. All pieces but the last have [`PIECE`] bytes.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(super) chunks: Vec<Arc<Chunk>>,
    bytes: usize,
}

/// What is mapped of it: where, how many bytes, what.
pub(super) type Mapped = (usize, usize, Arc<Chunk>);

impl Pieces {
    /// On the device as far as the budget goes, the rest on the host.
    pub(super) fn new(moving: &Moving, bytes: usize, prop: AllocationProp) -> Result<Arc<Self>, Code> {
        // So that nothing is taken of what cannot be had as a whole.
        if !converted::has_room(moving, prop.location.id, bytes) {
            return Err(Code::OUT_OF_MEMORY);
        }
        let sizes = (0..bytes).step_by(PIECE).map(|offset| PIECE.min(bytes - offset));
        let chunks: Result<_, Code> = sizes.map(|size| Chunk::new(moving, size, prop, Kind::Physical)).collect();
        Ok(Arc::new(Self { chunks: chunks?, bytes }))
    }

    /// What a program has for a handle.
    pub(super) fn token(&self) -> AllocationHandle {
        self.chunks.first().map_or(AllocationHandle(0), |first| first.token())
    }

    /// Maps it, or its beginning, for the program. If a piece cannot be mapped, those before it are unmapped again.
    pub(super) fn map(
        &self,
        moving: &Moving,
        address: DevicePtr,
        bytes: usize,
        offset: usize,
        flags: u64,
    ) -> Result<Vec<Mapped>, Code> {
        if offset != 0 {
            // As drivers answer.
            return Err(Code::NOT_SUPPORTED);
        }
        if bytes == 0 || bytes > self.bytes {
            return Err(Code::INVALID_VALUE);
        }
        let mut mapped: Vec<Mapped> = Vec::new();
        for (chunk, start) in self.chunks.iter().zip((0..bytes).step_by(PIECE)) {
            let (place, part) = (address.0 + start, chunk.bytes.min(bytes - start));
            let code = chunk.map(moving, DevicePtr(place), part, 0, flags);
            if !code.is_success() {
                for (place, bytes, chunk) in mapped {
                    // SAFETY: just mapped, exactly this range, and granted to nobody.
                    moves::surely(|| unsafe { (moving.api().cuMemUnmap)(DevicePtr(place), bytes) });
                    chunk.unmapped();
                }
                return Err(code);
            }
            mapped.push((place, part, Arc::clone(chunk)));
        }
        Ok(mapped)
    }
}
