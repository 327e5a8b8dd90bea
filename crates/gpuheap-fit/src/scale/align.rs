//! Traces that differ in scratch memory, too.
//!
//! Kernels take other ways at other sizes: below 3072 words the gradient of an embedding needs no scratch memory, above it
//! sorts. All else being alike, scratch memory that only some of the traces have becomes a storage of all of them, without
//! bytes where there was none.

use foldhash::HashSet;

use crate::trace::{Class, Event, Storage, Trace};

/// The traces with the same storages and the same events; `None` where more than scratch memory differs.
pub(super) fn align(traces: &[&Trace]) -> Option<Vec<Trace>> {
    let views: Vec<View> = traces.iter().map(|trace| View::new(trace)).collect::<Option<_>>()?;
    let first = views.first()?;
    if views.iter().any(|view| view.rest != first.rest || view.plain.len() != first.plain.len()) {
        return None;
    }
    let names = Names::new(&views, first.plain.len())?;
    let mut events = Vec::with_capacity(traces.iter().map(|trace| trace.events.len()).max().unwrap_or(0));
    let mut done: HashSet<(u32, bool)> = HashSet::default();
    for gap in 0..=first.rest.len() {
        for (view, names) in views.iter().zip(&names.by_trace) {
            for &(place, is_made) in &view.gaps[gap] {
                let storage = names[place];
                // What all have is written once.
                if done.insert((storage, is_made)) {
                    events.push(if is_made { Event::Alloc(storage) } else { Event::Free(storage) });
                }
            }
        }
        events.extend(first.rest.get(gap));
    }
    let aligned = traces.iter().zip(&views).zip(&names.by_trace).map(|((trace, view), own)| {
        let mut result = (*trace).clone();
        result.storages = view.plain.iter().map(|&id| trace.storages[id as usize].clone()).collect();
        for &(of, id) in &names.owners {
            let storage: &Storage = &traces[of].storages[id as usize];
            result.storages.push(Storage { bytes: 0, dtype: 0, ..storage.clone() });
        }
        for (scratch, &name) in view.scratch.iter().zip(own) {
            result.storages[name as usize] = trace.storages[scratch.id as usize].clone();
        }
        for argument in &mut result.arguments {
            *argument = view.new_id[*argument as usize];
        }
        result.events.clone_from(&events);
        result
    });
    Some(aligned.collect())
}

/// Scratch memory: between which of the other events it is made and dropped.
struct Scratch {
    id: u32,
    made: usize,
    dropped: Option<usize>,
}

/// A trace without its scratch memory, and that for itself.
struct View {
    /// Storages that are no scratch memory, by their new number.
    plain: Vec<u32>,
    /// New numbers of those.
    new_id: Vec<u32>,
    /// Events that are about no scratch memory, with new numbers.
    rest: Vec<Event>,
    scratch: Vec<Scratch>,
    /// Before each of the other events: what happens to scratch memory, and whether it is made.
    gaps: Vec<Vec<(usize, bool)>>,
}

impl View {
    /// `None` where scratch memory is made more than once, or given to operators.
    fn new(trace: &Trace) -> Option<Self> {
        let is_scratch = |id: u32| trace.storages[id as usize].class == Class::Workspace;
        let ids = 0..u32::try_from(trace.storages.len()).ok()?;
        let plain: Vec<u32> = ids.filter(|&id| !is_scratch(id)).collect();
        let mut new_id = vec![u32::MAX; trace.storages.len()];
        for (new, &id) in (0..).zip(&plain) {
            new_id[id as usize] = new;
        }
        if trace.arguments.iter().any(|&id| is_scratch(id)) {
            return None;
        }
        let mut view = Self { plain, new_id, rest: Vec::new(), scratch: Vec::new(), gaps: vec![Vec::new()] };
        let mut places = vec![usize::MAX; trace.storages.len()];
        for event in &trace.events {
            let gap = view.rest.len();
            match *event {
                Event::Alloc(id) if is_scratch(id) => {
                    if places[id as usize] != usize::MAX {
                        return None;
                    }
                    places[id as usize] = view.scratch.len();
                    view.gaps[gap].push((view.scratch.len(), true));
                    view.scratch.push(Scratch { id, made: gap, dropped: None });
                }
                Event::Free(id) if is_scratch(id) => {
                    let place = places[id as usize];
                    view.scratch.get_mut(place)?.dropped = Some(gap);
                    view.gaps[gap].push((place, false));
                }
                // Whether autograd keeps scratch memory says nothing.
                Event::Saved(id) if is_scratch(id) => {}
                other => {
                    let new = |id: u32| view.new_id[id as usize];
                    let event = match other {
                        Event::Alloc(id) => Event::Alloc(new(id)),
                        Event::Free(id) => Event::Free(new(id)),
                        Event::Saved(id) => Event::Saved(new(id)),
                        other => other,
                    };
                    view.rest.push(event);
                    view.gaps.push(Vec::new());
                }
            }
        }
        Some(view)
    }

    /// Scratch memory that is made before one of the other events, in order: when it is dropped.
    fn ends(&self, gap: usize) -> impl Iterator<Item = (usize, Option<usize>)> + '_ {
        let made = self.gaps[gap].iter().filter(|&&(_, is_made)| is_made);
        made.map(|&(place, _)| (place, self.scratch[place].dropped))
    }
}

/// What scratch memory is called in all traces.
struct Names {
    /// By trace, by its own list: the new number.
    by_trace: Vec<Vec<u32>>,
    /// By new number, without those that are no scratch memory: a trace that has it, and its number there.
    owners: Vec<(usize, u32)>,
}

impl Names {
    fn new(views: &[View], plain: usize) -> Option<Self> {
        let mut by_trace: Vec<Vec<u32>> = views.iter().map(|view| vec![u32::MAX; view.scratch.len()]).collect();
        let mut owners = Vec::new();
        let mut next = u32::try_from(plain).ok()?;
        for gap in 0..views.first()?.gaps.len() {
            let of: Vec<Vec<(usize, Option<usize>)>> = views.iter().map(|view| view.ends(gap).collect()).collect();
            let alike =
                of.windows(2).all(|pair| pair[0].iter().map(|&(_, end)| end).eq(pair[1].iter().map(|&(_, end)| end)));
            for (number, list) in of.iter().enumerate() {
                for (turn, &(place, _)) in list.iter().enumerate() {
                    by_trace[number][place] = match of[0].get(turn).filter(|_| alike && number > 0) {
                        Some(&(same, _)) => by_trace[0][same],
                        None => {
                            owners.push((number, views[number].scratch[place].id));
                            next += 1;
                            next - 1
                        }
                    };
                }
            }
        }
        debug_assert!(views.iter().all(|view| view.scratch.iter().all(|scratch| scratch.made < view.gaps.len())));
        Some(Self { by_trace, owners })
    }
}
