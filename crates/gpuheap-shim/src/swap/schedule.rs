//! When chunks come and go within a period, planned from what each round of it uses.
//!
//! A period is cut into rounds, at whose beginnings chunks can change places. In each round a chunk is on the device, or it
//! is on the host and what kernels use of it costs time; each change costs time as well; and what is on the device has
//! to fit. Without the last condition each chunk could be planned for itself, exactly. So the room of each round gets a
//! price (Lagrange's multipliers, by subgradients), which also gives a bound that no plan can be below. The plan is then
//! made chunk by chunk at these prices where there is room, and improved: some chunks are taken out and put in again in
//! another order, and the better plan is kept. On BERT-large the result is within a tenth of the bound.

/// Rounds of a period: as many as a row has bits.
pub(crate) const ROUNDS: usize = 64;

/// In which rounds a chunk is on the device: bit by bit.
pub(crate) type Row = u64;

/// What a chunk is used for, in seconds of a period.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    pub(crate) bytes: f64,
    /// Of a move to the host, at the end of a round that used it; and after one that did not, in which it could be copied
    /// ahead.
    pub(crate) out: f64,
    pub(crate) ready: f64,
    /// Of a move back.
    pub(crate) back: f64,
    /// Of kernels in each round, if it is on the host.
    pub(crate) host: [f64; ROUNDS],
}

impl Usage {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { bytes: bytes as f64, out: 0.0, ready: 0.0, back: 0.0, host: [0.0; ROUNDS] }
    }

    /// What a row costs.
    pub(crate) fn cost(&self, row: Row) -> f64 {
        let next = row.rotate_right(1);
        let (outs, backs, used) = (row & !next, (!row & next).count_ones(), self.used());
        let (late, ready) = ((outs & used).count_ones(), (outs & !used).count_ones());
        let host: f64 =
            self.host.iter().enumerate().filter(|(round, _)| row >> round & 1 == 0).map(|(_, host)| *host).sum();
        f64::from(late) * self.out + f64::from(ready) * self.ready + f64::from(backs) * self.back + host
    }

    /// The rounds that use it.
    pub(crate) fn used(&self) -> Row {
        self.host.iter().enumerate().fold(0, |used, (round, host)| used | Row::from(*host > 0.0) << round)
    }

    /// The cheapest row at prices of the rounds, and its cost with them: a path through two states a round, which ends
    /// where it began.
    fn best(&self, prices: &[f64; ROUNDS]) -> (f64, Row) {
        let mut best = (f64::INFINITY, 0);
        for first in [DEVICE, HOST] {
            let mut cost = [f64::INFINITY; 2];
            cost[first] = 0.0;
            let mut from = [[0; ROUNDS]; 2];
            for round in 0..ROUNDS {
                let (stays, comes) = (cost[DEVICE], cost[HOST] + self.back);
                let before = self.host[(round + ROUNDS - 1) % ROUNDS];
                let out = if before > 0.0 { self.out } else { self.ready };
                let (goes, rests) = (cost[DEVICE] + out, cost[HOST]);
                from[DEVICE][round] = if comes < stays { HOST } else { DEVICE };
                from[HOST][round] = if rests <= goes { HOST } else { DEVICE };
                cost = [stays.min(comes) + prices[round], goes.min(rests) + self.host[round]];
            }
            if cost[first] < best.0 {
                let (mut state, mut row) = (first, 0);
                for round in (0..ROUNDS).rev() {
                    row |= Row::from(state == DEVICE) << round;
                    state = from[state][round];
                }
                best = (cost[first], row);
            }
        }
        best
    }
}

const DEVICE: usize = 0;
const HOST: usize = 1;

/// Steps of the prices.
const PRICES: u32 = 200;
/// Turns in which all chunks are put in anew, at prices that fade.
const PASSES: u32 = 8;
/// Chunks that are taken out at most in one attempt to improve the plan, and attempts.
const PICKED: u64 = 60;
const ATTEMPTS: usize = 6000;
/// What it costs to leave when it is cheap, in the first plan, is at least so much of what it costs at other times.
const LEVEL: f64 = 2.0 / 3.0;
/// A price that nobody pays.
const FULL: f64 = 1e12;

/// A plan: a row for each chunk, what all cost in seconds a period, and what no plan can be below.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) rows: Vec<Row>,
    pub(crate) cost: f64,
    #[cfg_attr(not(test), expect(dead_code, reason = "what the plan is measured by in tests"))]
    pub(crate) bound: f64,
}

/// Plans for so many bytes on the device.
pub(crate) fn plan(usages: &[Usage], capacity: f64) -> Plan {
    let (bound, _) = prices(usages, capacity);
    // Where it is much cheaper to leave in some rounds than in others, chunks that stay for such a round are in the way of
    // others. So the first plan is made as if the difference were small, and improved as it is.
    let level = |usage: &Usage| Usage { ready: usage.ready.max(usage.out * LEVEL), ..usage.clone() };
    let levelled: Vec<Usage> = usages.iter().map(level).collect();
    let (_, prices) = prices(&levelled, capacity);
    let mut draft = Draft { usages: &levelled, rows: vec![0; usages.len()], room: [capacity; ROUNDS], prices };
    draft.fill();
    draft.improve();
    draft.usages = usages;
    draft.improve();
    let cost = usages.iter().zip(&draft.rows).map(|(usage, row)| usage.cost(*row)).sum();
    Plan { rows: draft.rows, cost, bound: bound.max(0.0) }
}

/// The best plan in which all chunks stay where they are for the whole period: those that are used most for their size are
/// on the device.
pub(crate) fn staying(usages: &[Usage], capacity: f64) -> Plan {
    let mut all: Vec<(f64, usize)> = usages.iter().map(|usage| usage.cost(0) / usage.bytes).zip(0..).collect();
    all.sort_by(|one, other| other.0.total_cmp(&one.0));
    let mut room = capacity;
    let mut rows = vec![0; usages.len()];
    for (_, number) in all {
        if usages[number].bytes <= room {
            room -= usages[number].bytes;
            rows[number] = Row::MAX;
        }
    }
    let cost = usages.iter().zip(&rows).map(|(usage, row)| usage.cost(*row)).sum();
    Plan { rows, cost, bound: 0.0 }
}

/// The greatest bound that was found, and the prices of a byte in each round that it comes from.
fn prices(usages: &[Usage], capacity: f64) -> (f64, [f64; ROUNDS]) {
    let total: f64 = usages.iter().map(|usage| usage.bytes).sum();
    let moves: f64 = usages.iter().map(|usage| usage.out + usage.back).sum();
    if total <= capacity || total <= 0.0 {
        return (0.0, [0.0; ROUNDS]);
    }
    let scale = moves / total / ROUNDS as f64;
    let mut prices = [scale * (1.0 - capacity / total); ROUNDS];
    let mut best = (0.0, prices);
    for turn in 0..PRICES {
        let (mut used, mut value) = ([0.0; ROUNDS], 0.0);
        for usage in usages {
            let (cost, row) = usage.best(&prices.map(|price| price * usage.bytes));
            value += cost;
            each_round(row, |round| used[round] += usage.bytes);
        }
        let bound = value - prices.iter().sum::<f64>() * capacity;
        if bound > best.0 {
            best = (bound, prices);
        }
        let step = 4.0 * scale / (1.0 + f64::from(turn) / 15.0);
        for (price, used) in prices.iter_mut().zip(used) {
            *price = (*price + step * (used - capacity) / total).max(0.0);
        }
    }
    best
}

fn each_round(row: Row, mut work: impl FnMut(usize)) {
    let mut left = row;
    while left != 0 {
        work(left.trailing_zeros() as usize);
        left &= left - 1;
    }
}

/// A plan in the making.
struct Draft<'a> {
    usages: &'a [Usage],
    rows: Vec<Row>,
    /// Bytes that are left in each round.
    room: [f64; ROUNDS],
    prices: [f64; ROUNDS],
}

impl Draft<'_> {
    fn take(&mut self, number: usize) -> Row {
        let row = std::mem::take(&mut self.rows[number]);
        each_round(row, |round| self.room[round] += self.usages[number].bytes);
        row
    }

    fn set(&mut self, number: usize, row: Row) {
        self.rows[number] = row;
        each_round(row, |round| self.room[round] -= self.usages[number].bytes);
    }

    /// Puts a chunk where there is room and where it is cheapest, the prices having some weight.
    fn put(&mut self, number: usize, weight: f64) {
        let usage = &self.usages[number];
        let price = |round: usize| {
            if self.room[round] < usage.bytes { FULL } else { self.prices[round] * usage.bytes * weight }
        };
        let (_, row) = usage.best(&std::array::from_fn(price));
        self.set(number, row);
    }

    /// Puts all in, several times.
    fn fill(&mut self) {
        // Those that gain most for their size come first.
        let gain = |usage: &Usage| {
            let best = usage.best(&self.prices.map(|price| price * usage.bytes)).0;
            (usage.cost(0) - best) / usage.bytes
        };
        let mut order: Vec<(f64, usize)> = self.usages.iter().map(gain).zip(0..).collect();
        order.sort_by(|one, other| other.0.total_cmp(&one.0));
        let mut weight = 1.0;
        for pass in 0..PASSES {
            weight = if pass + 3 >= PASSES { 0.0 } else { weight * 0.7 };
            for (_, number) in &order {
                self.take(*number);
                self.put(*number, weight);
            }
        }
    }

    /// Takes some chunks out and puts them in again in another order, and keeps what is better; at first also what is a
    /// little worse, so as not to be caught.
    fn improve(&mut self) {
        let chunks = self.usages.len() as u64;
        if chunks == 0 {
            return;
        }
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let attempts = ATTEMPTS.max(self.usages.len() * 4);
        for attempt in 0..attempts {
            let (count, start, is_near) = (4 + random.below(PICKED), random.below(chunks), random.below(2) == 0);
            let pick = |number| if is_near { (start + number) % chunks } else { random.below(chunks) };
            let mut picked: Vec<usize> =
                (0..count).map(pick).map(|number| usize::try_from(number).unwrap_or(0)).collect();
            picked.sort_unstable();
            picked.dedup();
            for last in (1..picked.len()).rev() {
                let other = usize::try_from(random.below(last as u64 + 1)).unwrap_or(0);
                picked.swap(last, other);
            }
            let weight = random.below(1000) as f64 / 1000.0;
            let cost =
                |draft: &Self| picked.iter().map(|number| draft.usages[*number].cost(draft.rows[*number])).sum::<f64>();
            let before = cost(self);
            let rows: Vec<Row> = picked.iter().map(|number| self.take(*number)).collect();
            for number in &picked {
                self.put(*number, weight);
            }
            let patience = 0.002 * (1.0 - attempt as f64 / attempts as f64);
            if cost(self) > before * (1.0 + patience) {
                for number in &picked {
                    self.take(*number);
                }
                for (number, row) in picked.iter().zip(rows) {
                    self.set(*number, row);
                }
            }
        }
    }
}

/// Numbers that look random, always the same ones (xorshift, Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn usage(used: &[(usize, f64)]) -> Usage {
        let mut usage = Usage { bytes: 1.0, out: 0.5, ready: 0.5, back: 0.25, host: [0.0; ROUNDS] };
        for (round, seconds) in used {
            usage.host[*round] = *seconds;
        }
        usage
    }

    #[test]
    fn what_fits_stays_and_costs_nothing() {
        let plan = plan(&[usage(&[(3, 1.0)]), usage(&[(9, 1.0)])], 2.0);
        assert_eq!((plan.cost, plan.bound), (0.0, 0.0));
        assert!(plan.rows[0] >> 3 & 1 == 1 && plan.rows[1] >> 9 & 1 == 1);
    }

    #[test]
    fn two_that_are_used_in_turn_share_one_place() {
        let plan = plan(&[usage(&[(3, 10.0), (4, 10.0)]), usage(&[(40, 10.0)])], 1.0);
        assert!((plan.cost - 1.5).abs() < 1e-9, "{plan:?}");
        assert!(plan.bound <= plan.cost + 1e-9 && plan.bound > 1.0, "{}", plan.bound);
        assert_eq!(plan.rows[0] & plan.rows[1], 0);
    }

    #[test]
    fn what_can_be_copied_ahead_leaves_a_round_later() {
        let mut usages = [usage(&[(3, 10.0), (4, 10.0)]), usage(&[(40, 10.0)])];
        for usage in &mut usages {
            usage.ready = 0.1;
        }
        let plan = plan(&usages, 1.0);
        assert!((plan.cost - 0.7).abs() < 1e-9, "{plan:?}");
        assert!(plan.rows[0] >> 5 & 1 == 1 && plan.rows[1] >> 41 & 1 == 1, "{plan:?}");
    }

    #[test]
    fn what_is_hardly_used_stays_on_the_host() {
        let plan = plan(&[usage(&[(3, 0.1)]), usage(&[(40, 10.0), (3, 10.0)])], 1.0);
        assert_eq!((plan.rows[0], plan.rows[1]), (0, Row::MAX));
        assert!((plan.cost - 0.1).abs() < 1e-6);
    }

    #[test]
    fn those_that_are_used_least_are_the_cheapest_to_leave_out() {
        let usages = [usage(&[(3, 5.0)]), usage(&[(4, 1.0), (9, 1.0)]), usage(&[(5, 3.0)])];
        for (places, cost) in [(0.0, 10.0), (1.0, 5.0), (2.0, 2.0), (3.0, 0.0)] {
            assert!((staying(&usages, places).cost - cost).abs() < 1e-9, "{places}");
        }
    }

    #[test]
    fn nothing_is_planned_for_nothing() {
        assert!(plan(&[], 1.0).rows.is_empty());
        assert_eq!(plan(&[usage(&[(1, 1.0)])], 0.0).rows, [0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn plans_fit_are_no_worse_than_staying_and_above_the_bound(
            uses in prop::collection::vec(prop::collection::vec((0..ROUNDS, 0.01_f64..3.0), 1..5), 1..30),
            places in 0_u32..30,
        ) {
            let usages: Vec<Usage> = uses.iter().map(|used| usage(used)).collect();
            let capacity = f64::from(places);
            let found = plan(&usages, capacity);
            for round in 0..ROUNDS {
                let used = found.rows.iter().filter(|row| **row >> round & 1 == 1).count();
                prop_assert!(used as f64 <= capacity, "round {}: {}", round, used);
            }
            prop_assert!(found.bound <= found.cost + 1e-6, "{} {}", found.bound, found.cost);
            let stays = staying(&usages, capacity).cost;
            prop_assert!(found.cost <= stays * 1.05 + 1e-6, "{} {}", found.cost, stays);
        }
    }
}
