//! Chunks that go and chunks that come at the same time: the link carries as much in one direction whether or not
//! something goes the other way (measured on an H200: 55 GB/s each, 98 GB/s together). Changing what is behind
//! addresses waits for all copies that are under way, so copies and mappings take turns, a group at a time.

use std::sync::Arc;

use gpuheap_cuda::{Error, Stream};

use super::{Moved, Mover, Store};
use crate::charge::{Charge, Kind};
use crate::chunks::{Backing, Chunk, on_device};

/// Chunks of a group, each way.
const GROUP: usize = 16;

/// A chunk that goes: where its content goes, and what it is charged as there.
type Going = (Arc<Chunk>, Store, Charge);
/// A chunk that comes, and where its content is until it has come.
type Coming = (Arc<Chunk>, Store);

impl Mover<'_> {
    /// Moves some chunks to the host, behind their addresses, and others back, each as far as there is room. Tells what
    /// went and what came.
    pub(crate) fn exchange(&self, mut outs: &[Arc<Chunk>], mut backs: &[Arc<Chunk>]) -> (Moved, Moved) {
        let (mut gone, mut came) = (Moved::default(), Moved::default());
        let inward = match Stream::new(&self.context) {
            Ok(stream) => stream,
            Err(error) => return (error.into(), came),
        };
        while gone.error.is_none() && came.error.is_none() {
            let coming = self.make_room(&mut backs, &mut came);
            let going = self.take_stores(&mut outs);
            if coming.is_empty() && going.is_empty() {
                break;
            }
            let (coming, going) = self.start(&inward, (coming, going), (&mut gone, &mut came));
            // A copy that failed has broken the context, and the program with it: what was begun is finished in any case.
            let finished = inward.synchronize().and(self.stream.synchronize());
            if let Err(error) = finished {
                gone.add(error.into());
            }
            for (chunk, store) in coming {
                store.keep(self.moving);
                came.add(Moved { chunks: 1, bytes: chunk.bytes as u64, error: None });
            }
            for (chunk, store, charge) in going {
                match self.leave(&chunk, store, charge) {
                    Ok(()) => gone.add(Moved { chunks: 1, bytes: chunk.bytes as u64, error: None }),
                    Err(error) => gone.add(error.into()),
                }
            }
        }
        self.moving.keep_to_limit();
        (gone, came)
    }

    /// Puts the device's memory behind the addresses of the next chunks that come, as long as there is room.
    fn make_room(&self, backs: &mut &[Arc<Chunk>], came: &mut Moved) -> Vec<Coming> {
        let mut coming = Vec::with_capacity(GROUP);
        while coming.len() < GROUP {
            let Some((chunk, rest)) = backs.split_first() else { break };
            let origin = chunk.inner().charge.origin();
            let made = on_device(self.moving, chunk.bytes, &chunk.prop, (chunk.kind, origin));
            let Ok((charge, Backing::Device(handle))) = made else { break };
            *backs = rest;
            match self.come(chunk, charge, handle) {
                Ok(Some((store, _))) => coming.push((Arc::clone(chunk), store)),
                Ok(None) => {}
                Err(error) => {
                    came.add(error.into());
                    break;
                }
            }
        }
        coming
    }

    /// Memory of the host for the next chunks that go, as long as there is some.
    fn take_stores(&self, outs: &mut &[Arc<Chunk>]) -> Vec<Going> {
        let group = &outs[..outs.len().min(GROUP)];
        let sizes: Vec<usize> = group.iter().map(|chunk| chunk.bytes).collect();
        let mut pieces = self.moving.mapped.take_all(self.context.device(), &sizes).into_iter();
        let mut going = Vec::with_capacity(group.len());
        for chunk in group {
            let Some(piece) = pieces.next() else { break };
            let origin = chunk.inner().charge.origin();
            let Some(charge) = Charge::try_take_for(origin, Kind::Spilled, Some(chunk.device), chunk.bytes) else {
                self.moving.mapped.give(piece);
                break;
            };
            going.push((Arc::clone(chunk), Store::Mapped(piece), charge));
        }
        pieces.for_each(|piece| self.moving.mapped.give(piece));
        // If the host has no more, none of the others goes either.
        *outs = if going.len() == group.len() { &outs[group.len()..] } else { &[] };
        going
    }

    /// Begins to copy both ways. What cannot be begun stays where it was, and is left out of the answer.
    fn start(
        &self,
        inward: &Stream,
        (coming, going): (Vec<Coming>, Vec<Going>),
        (gone, came): (&mut Moved, &mut Moved),
    ) -> (Vec<Coming>, Vec<Going>) {
        let begin_to_come = |(chunk, store): Coming| {
            let address = chunk.inner().address?;
            match self.load(inward, address, &store, chunk.bytes) {
                Ok(()) => Some((chunk, store)),
                Err(error) => {
                    came.add(self.go_back(&chunk, store, error).into());
                    None
                }
            }
        };
        let begun = coming.into_iter().filter_map(begin_to_come).collect();
        let begin_to_go = |(chunk, store, charge): Going| {
            let address = chunk.inner().address;
            let saved = address.map(|address| self.save(&store, address, chunk.bytes));
            if matches!(saved, Some(Ok(()))) {
                return Some((chunk, store, charge));
            }
            store.keep(self.moving);
            if let Some(Err(error)) = saved {
                gone.add(error.into());
            }
            None
        };
        (begun, going.into_iter().filter_map(begin_to_go).collect())
    }

    /// The content is where it was: so is the chunk.
    pub(super) fn go_back(&self, chunk: &Chunk, store: Store, error: Error) -> Error {
        let origin = chunk.inner().charge.origin();
        let charge = Charge::hold(origin, Kind::Spilled, Some(chunk.device), chunk.bytes);
        self.leave(chunk, store, charge).err().unwrap_or(error)
    }
}
