//! What to do to each block of a chain, exactly.
//!
//! At any moment of the forward pass the blocks behind have run, in the backward pass those before are still to come: in
//! both cases the blocks whose activations wait are the first so many of the chain. So what must be spared before a block
//! depends on the blocks before it alone, and the cheapest choice for a budget follows block by block: of all choices for
//! the blocks so far only those are kept that no other one beats in both time and bytes. Blocks that are alike give the
//! same sums whichever of them are chosen, so there are few of those. The choice is optimal for peaks that are sums of
//! what blocks spare; whether they are, the replay of the chosen program says.

use crate::blocks::{Block, Uses};
use crate::cost::CostModel;
use crate::device::Device;
use crate::levers::checkpoint::{Treatment, is_costly, run_of, treat};
use crate::program::Program;
use crate::trace::{Event, Pass};

/// Choices beyond which the least promising are dropped, and the result is no longer called optimal.
const MOST_STATES: usize = 4096;

/// What one treatment of one block comes to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Choice {
    /// The treatment.
    pub treatment: Treatment,
    /// Bytes that are spared while the block waits.
    pub spares: u64,
    /// Microseconds that it costs a step.
    pub costs_us: f64,
    /// The most bytes during its backward pass, if no other block is treated.
    pub within: u64,
}

/// A block, and the moments around it.
#[derive(Clone, PartialEq, Debug)]
pub struct Link {
    /// The most bytes after the block before was left and until this one was, if nothing is treated.
    pub before: u64,
    /// What can be done to it; the first is nothing.
    pub choices: Vec<Choice>,
}

/// A chain of blocks.
#[derive(Clone, PartialEq, Debug)]
pub struct Chain {
    /// The blocks, in forward order.
    pub links: Vec<Link>,
    /// The most bytes while all blocks wait, or none: if nothing is treated.
    pub waiting: u64,
    /// The most bytes at moments at which no block waits.
    pub outside: u64,
}

/// A choice for each block.
#[derive(Clone, PartialEq, Debug)]
pub struct Solved {
    /// By block.
    pub treatments: Vec<Treatment>,
    /// What they cost a step, in microseconds.
    pub costs_us: f64,
    /// Whether no choice that keeps to the budget is cheaper.
    pub optimal: bool,
}

impl Chain {
    /// What each treatment of each block of a program comes to.
    #[must_use]
    pub fn new(
        program: &Program<'_>,
        uses: &Uses,
        blocks: &[Block],
        allowed: &[Treatment],
        cost: &CostModel,
        device: &Device,
    ) -> Self {
        let memory = memory(program);
        let most = |from: usize, to: usize| memory[from.min(memory.len())..to.min(memory.len())].iter().copied().max();
        let mut links: Vec<Link> = blocks.iter().map(|_| Link { before: 0, choices: Vec::new() }).collect();
        let mut waiting = 0_u64;
        let passages = blocks.iter().map(|block| block.passages.len()).min().unwrap_or(0);
        // Every moment of a step belongs to a number of blocks that wait.
        let mut covered = vec![false; memory.len()];
        for turn in 0..passages {
            let turn = |block: &Block| -> crate::blocks::Passage {
                block.passages[block.passages.len() - passages + turn].clone()
            };
            let mut last = None;
            for (index, block) in blocks.iter().enumerate() {
                let passage = turn(block);
                let start = last.unwrap_or(passage.enter);
                links[index].before = links[index].before.max(most(start, passage.leave + 1).unwrap_or(0));
                mark(&mut covered, start, passage.leave + 1);
                last = Some(passage.leave + 1);
            }
            if let (Some(first), Some(last)) = (last, blocks.last()) {
                let end = turn(last).needed;
                waiting = waiting.max(most(first, end).unwrap_or(0));
                mark(&mut covered, first, end);
            }
            // On the way back: between two blocks, the earlier one still waits.
            for pair in blocks.windows(2) {
                let (start, end) = (turn(&pair[1]).done, turn(&pair[0]).needed);
                let between = most(start, end.max(start)).unwrap_or(0);
                // All blocks up to the earlier one wait: what the later one may not count on.
                links.iter_mut().zip(blocks).for_each(|(link, block)| {
                    if block.module == pair[1].module {
                        link.before = link.before.max(between);
                    }
                });
                mark(&mut covered, start, end);
            }
        }
        for block in blocks {
            for passage in &block.passages {
                mark(&mut covered, passage.needed, passage.done + 1);
            }
        }
        let outside = memory.iter().zip(&covered).filter(|&(_, &covered)| !covered).map(|(&bytes, _)| bytes).max();
        let mut treated = Vec::new();
        for &treatment in allowed {
            treated.push((treatment, all_treated(program, uses, blocks, treatment, cost, device)));
        }
        for (index, link) in links.iter_mut().enumerate() {
            let block = &blocks[index];
            let nothing = block.passages.iter().filter_map(|passage| most(passage.needed, passage.done + 1)).max();
            link.choices.push(Choice {
                treatment: Treatment::Keep,
                spares: 0,
                costs_us: 0.0,
                within: nothing.unwrap_or(0),
            });
            link.choices.extend(treated.iter().map(|(treatment, all)| Choice {
                treatment: *treatment,
                spares: all[index].0,
                costs_us: all[index].1,
                within: all[index].2,
            }));
            // What spares nothing is no choice.
            link.choices.retain(|choice| choice.treatment == Treatment::Keep || choice.spares > 0);
        }
        Self { links, waiting, outside: outside.unwrap_or(0) }
    }

    /// Whether there is a choice that copies to the host.
    #[must_use]
    pub fn offloads(&self) -> bool {
        self.links.iter().flat_map(|link| &link.choices).any(|choice| choice.treatment == Treatment::Offload)
    }

    /// The same chain without some treatments.
    #[must_use]
    pub fn without(&self, treatments: &[Treatment]) -> Self {
        let mut chain = self.clone();
        for link in &mut chain.links {
            link.choices.retain(|choice| !treatments.contains(&choice.treatment));
        }
        chain
    }

    /// The cheapest choice with which no moment holds more than `budget` bytes. Copies to the host count for `offload` of
    /// their time.
    #[must_use]
    pub fn solve(&self, budget: u64, offload: f64) -> Option<Solved> {
        if self.outside > budget {
            return None;
        }
        // Per block: bytes spared so far, cost so far, the choice, and which state of the block before it goes on from.
        let mut layers: Vec<Vec<(u64, f64, usize, usize)>> = vec![vec![(0, 0.0, 0, 0)]];
        let mut optimal = true;
        for link in &self.links {
            let last = layers.last().map_or(&[][..], Vec::as_slice);
            let mut next: Vec<(u64, f64, usize, usize)> = Vec::new();
            // Choice by choice, since the states before are in order: that makes few runs to sort.
            for (index, choice) in link.choices.iter().enumerate() {
                let weight = if choice.treatment == Treatment::Offload { offload } else { 1.0 };
                for (from, &(spared, costs, ..)) in last.iter().enumerate() {
                    if link.before.max(choice.within).saturating_sub(spared) <= budget {
                        let costs = costs + weight * choice.costs_us;
                        next.push((spared.saturating_add(choice.spares), costs, index, from));
                    }
                }
            }
            keep_best(&mut next);
            if next.len() > MOST_STATES {
                optimal = false;
                thin(&mut next);
            }
            if next.is_empty() {
                return None;
            }
            layers.push(next);
        }
        let last = layers.last()?;
        let fits = last.iter().enumerate().filter(|(_, state)| self.waiting.saturating_sub(state.0) <= budget);
        let (mut at, &(_, costs_us, ..)) = fits.min_by(|one, other| one.1.1.total_cmp(&other.1.1))?;
        let mut treatments = vec![Treatment::Keep; self.links.len()];
        for index in (0..self.links.len()).rev() {
            let (_, _, choice, from) = layers[index + 1][at];
            treatments[index] = self.links[index].choices[choice].treatment;
            at = from;
        }
        Some(Solved { treatments, costs_us, optimal })
    }
}

/// Drops every state that another one beats in bytes and in time.
fn keep_best(states: &mut Vec<(u64, f64, usize, usize)>) {
    states.sort_by(|one, other| {
        let bytes = other.0.cmp(&one.0).then(one.1.total_cmp(&other.1));
        bytes.then(one.3.cmp(&other.3)).then(one.2.cmp(&other.2))
    });
    let mut least = f64::INFINITY;
    states.retain(|state| {
        let better = state.1 < least - 1e-9;
        if better {
            least = state.1;
        }
        better
    });
}

/// Keeps evenly spread states of a list that is in order.
fn thin(states: &mut Vec<(u64, f64, usize, usize)>) {
    let count = states.len();
    let mut index = 0;
    states.retain(|_| {
        let keep = index * MOST_STATES / count != (index + 1) * MOST_STATES / count;
        index += 1;
        keep
    });
}

fn mark(covered: &mut [bool], from: usize, to: usize) {
    let end = to.min(covered.len());
    if from < end {
        covered[from..end].fill(true);
    }
}

/// Bytes alive after each event.
fn memory(program: &Program<'_>) -> Vec<u64> {
    let mut alive = 0_u64;
    let after = program.events.iter().map(|event| {
        match *event {
            Event::Alloc(slot) => alive = alive.saturating_add(program.slots[slot as usize].rounded()),
            Event::Free(slot) => alive = alive.saturating_sub(program.slots[slot as usize].rounded()),
            _ => {}
        }
        alive
    });
    after.collect()
}

/// For each block, with all blocks treated alike: bytes spared, microseconds, and the most bytes of its own backward pass
/// had no other block been treated.
fn all_treated(
    program: &Program<'_>,
    uses: &Uses,
    blocks: &[Block],
    treatment: Treatment,
    cost: &CostModel,
    device: &Device,
) -> Vec<(u64, f64, u64)> {
    let treated = treat(program, uses, blocks, &vec![treatment; blocks.len()], device);
    let (before, after) = (memory(program), memory(&treated.program));
    let mut result = Vec::with_capacity(blocks.len());
    let mut spared_before: Vec<u64> = Vec::new();
    let steady = blocks.last().map_or(0, |block| block.passages.len());
    let last = LastStep::new(program);
    for block in blocks {
        let (mut spares, mut within) = (u64::MAX, 0_u64);
        for (turn, passage) in block.passages.iter().enumerate() {
            let new = |at: usize| treated.places[at.min(treated.places.len() - 1)];
            if spared_before.len() <= turn {
                spared_before.resize(turn + 1, 0);
            }
            // After the block was left: all that it and those before it spare.
            let old_left = before[passage.leave];
            let new_left = after[new(passage.leave)];
            let so_far = old_left.saturating_sub(new_left);
            spares = spares.min(so_far.saturating_sub(spared_before[turn]));
            // Only what is made again has a second pass: to look for one takes long where there is none.
            let again = matches!(treatment, Treatment::Recompute | Treatment::Selective);
            let needed = new(passage.needed);
            let start = if again { second_pass(&treated.program, needed, block.module) } else { needed };
            let end = new(passage.done) + 1;
            let most = after[start..end.min(after.len()).max(start)].iter().copied().max().unwrap_or(0);
            within = within.max(most.saturating_add(spared_before[turn]));
            spared_before[turn] = so_far.max(spared_before[turn]);
        }
        let costs = costs_us(program, &last, block, treatment, cost, device);
        result.push((if steady == 0 || spares == u64::MAX { 0 } else { spares }, costs, within));
    }
    result
}

/// Where the second forward pass of a block, which ends before event `at`, begins.
fn second_pass(program: &Program<'_>, at: usize, module: u32) -> usize {
    let is_pass = |event: &Event| matches!(event, Event::Enter(of, Pass::Recompute | Pass::Forward) if *of == module);
    let last = program.events[..at].iter().rposition(is_pass);
    // If the last time was the forward pass, there is no second one.
    last.filter(|&last| matches!(program.events[last], Event::Enter(_, Pass::Recompute))).unwrap_or(at)
}

/// The last step of a program, and how often what is in it happens.
struct LastStep {
    start: usize,
    /// From which event on, and how often.
    repeats: Vec<(usize, f64)>,
}

impl LastStep {
    fn new(program: &Program<'_>) -> Self {
        let start = program.steps().last().map_or(0, |step| step.start);
        let counts = program.events.iter().enumerate().skip(start).filter_map(|(at, event)| match event {
            Event::Repeat(count) => Some((at, f64::from(*count))),
            _ => None,
        });
        Self { start, repeats: counts.collect() }
    }

    fn times(&self, at: usize) -> f64 {
        let before = self.repeats.partition_point(|&(from, _)| from < at);
        before.checked_sub(1).map_or(1.0, |index| self.repeats[index].1)
    }
}

/// What treating the block costs the last step.
fn costs_us(
    program: &Program<'_>,
    last: &LastStep,
    block: &Block,
    treatment: Treatment,
    cost: &CostModel,
    device: &Device,
) -> f64 {
    let mut sum = 0.0;
    for passage in block.passages.iter().filter(|passage| passage.enter >= last.start) {
        let once = match treatment {
            Treatment::Keep => 0.0,
            Treatment::Recompute | Treatment::Selective => {
                let selective = treatment == Treatment::Selective;
                let again = |op: &str| !(selective && is_costly(op));
                cost.treated_us(program, (passage.enter, passage.leave), run_of(treatment), again)
            }
            Treatment::Offload => {
                let sizes = passage.kept.iter().map(|&slot| program.slots[slot as usize].bytes);
                let bytes: u64 = sizes.filter(|&bytes| bytes >= crate::levers::checkpoint::OFFLOADED).sum();
                2.0 * bytes as f64 / device.link_bytes_per_second.value.max(1.0) * 1e6
            }
        };
        sum += once * last.times(passage.enter);
    }
    sum
}
