//! Where in its period a program is, told by each launch; and whether the plan is of use.

use std::sync::Arc;
use std::time::Instant;

use super::rounds::Schedule;
use super::schedule::ROUNDS;
use super::sequence::Period;

/// A plan that is carried out.
pub(crate) struct Following {
    schedule: Arc<Schedule>,
    positions: Positions,
    length: usize,
    position: usize,
    /// Whether it is known yet where that is.
    is_placed: bool,
    /// Another position that launches of late point to, and how many in turn.
    other: usize,
    agreeing: u32,
    round: usize,
    /// Whether its half was told.
    is_halfway: bool,
    /// Launches since matches were last counted, and those that the period has.
    seen: usize,
    known: usize,
    failures: u32,
    trial: Trial,
}

/// What a launch means.
#[derive(PartialEq, Debug)]
pub(crate) enum Step {
    /// Nothing.
    On,
    /// A round begins with it, and perhaps the period.
    Round { round: usize, begins_anew: bool },
    /// Half of a round is over.
    Halfway(usize),
    /// The program does something else now.
    Lost,
    /// It is not faster than before.
    Useless,
}

/// So many of a hundred launches have to be known.
const KNOWN: usize = 40;
/// So many launches in turn tell that the program is elsewhere.
const AGREE: u32 = 4;
/// After so many rounds that could not be carried out it is given up.
const FAILURES: u32 = 3;

impl Following {
    pub(crate) fn new(period: &Period, schedule: Schedule, trial: Trial) -> Self {
        Self {
            // Where the program is matters only if something moves.
            is_placed: schedule.stays(),
            schedule: Arc::new(schedule),
            positions: Positions::of(period),
            length: period.launches.len(),
            position: 0,
            other: 0,
            agreeing: 0,
            round: ROUNDS,
            is_halfway: false,
            seen: 0,
            known: 0,
            failures: 0,
            trial,
        }
    }

    pub(crate) fn schedule(&self) -> Arc<Schedule> {
        Arc::clone(&self.schedule)
    }

    /// A launch.
    #[inline]
    pub(crate) fn launched(&mut self, signature: u64) -> Step {
        self.seen += 1;
        let found = self.positions.find(signature);
        self.go_on(found.one());
        // If all stays it is enough that the program does the same, in whatever order.
        let is_known = if self.schedule.stays() { found != Found::None } else { found.one() == Some(self.position) };
        self.known += usize::from(is_known);
        if self.seen >= self.length {
            let is_lost = self.known * 100 < self.seen * KNOWN;
            (self.seen, self.known) = (0, 0);
            if is_lost {
                return Step::Lost;
            }
        }
        let round = self.position * ROUNDS / self.length;
        if !self.is_placed {
            return Step::On;
        }
        if round == self.round {
            let is_past = self.position * 2 * ROUNDS / self.length > 2 * round;
            if is_past && !std::mem::replace(&mut self.is_halfway, true) {
                return Step::Halfway(round);
            }
            return Step::On;
        }
        let begins_anew = round + ROUNDS / 2 < self.round;
        (self.round, self.is_halfway) = (round, false);
        if begins_anew && self.trial.turn(Instant::now()) {
            return Step::Useless;
        }
        Step::Round { round, begins_anew }
    }

    /// Whether the plan was found to be of use.
    pub(crate) fn is_proven(&self) -> bool {
        self.trial.is_over
    }

    /// A small tensor may be where another one was in the period, and lead its launch astray. So the position goes on by
    /// one from launch to launch, and elsewhere only if some in turn point there.
    fn go_on(&mut self, found: Option<usize>) {
        self.position = (self.position + 1) % self.length;
        self.other = (self.other + 1) % self.length;
        match found {
            None => {}
            Some(position) if self.is_placed && position == self.position => self.agreeing = 0,
            Some(position) if position == self.other => self.agreeing += 1,
            Some(position) => (self.other, self.agreeing) = (position, 1),
        }
        if self.agreeing >= AGREE {
            (self.position, self.agreeing, self.is_placed) = (self.other, 0, true);
        }
    }

    /// A round could not be carried out. True if that happens too often.
    pub(crate) fn failed(&mut self) -> bool {
        self.failures += 1;
        self.failures >= FAILURES
    }
}

/// Where in the period a launch stands of which there is only one: its signature leads there.
struct Positions(Box<[(u64, u32)]>);

/// Not one position but several.
const MANY: u32 = u32::MAX;

/// What is known of a signature.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Found {
    None,
    One(usize),
    Many,
}

impl Found {
    fn one(self) -> Option<usize> {
        if let Self::One(position) = self { Some(position) } else { None }
    }
}

impl Positions {
    fn of(period: &Period) -> Self {
        let mut places = vec![(0, 0); (period.launches.len() * 2).next_power_of_two()].into_boxed_slice();
        for (number, launch) in period.launches.iter().enumerate() {
            let place = Self::place(&places, launch.signature);
            let position = u32::try_from(number).unwrap_or(MANY);
            places[place] = (launch.signature, if places[place].0 == launch.signature { MANY } else { position });
        }
        Self(places)
    }

    /// Where a signature is, or could be: there is always a free place.
    #[inline]
    fn place(places: &[(u64, u32)], signature: u64) -> usize {
        let mut place = usize::try_from(signature >> 32).unwrap_or(0) % places.len();
        while places[place].0 != signature && places[place] != (0, 0) {
            place = (place + 1) % places.len();
        }
        place
    }

    #[inline]
    fn find(&self, signature: u64) -> Found {
        match self.0[Self::place(&self.0, signature)] {
            (found, _) if found != signature || signature == 0 => Found::None,
            (_, MANY) => Found::Many,
            (_, position) => Found::One(position as usize),
        }
    }
}

/// Compares how long a period takes with the plan and without.
pub(crate) struct Trial {
    before: f64,
    began: Option<Instant>,
    turns: u32,
    is_over: bool,
}

/// Periods until the plan is in place, and those that are then measured.
const SETTLE: u32 = 2;
const MEASURED: u32 = 3;
/// A plan has to be that much faster.
const BETTER: f64 = 0.98;

impl Trial {
    /// Of a program whose period took so many seconds.
    pub(crate) fn new(before: f64) -> Self {
        Self { before, began: None, turns: 0, is_over: false }
    }

    /// A period is over. True if the plan is of no use.
    fn turn(&mut self, now: Instant) -> bool {
        if self.is_over {
            return false;
        }
        self.turns += 1;
        if self.turns == SETTLE {
            self.began = Some(now);
        }
        let Some(began) = self.began.filter(|_| self.turns == SETTLE + MEASURED) else { return false };
        self.is_over = true;
        let seconds = now.duration_since(began).as_secs_f64() / f64::from(MEASURED);
        seconds > self.before * BETTER
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use super::*;
    use crate::swap::rounds::Entry;
    use crate::swap::sequence::Call;

    fn period(length: u64) -> Period {
        let launches: Vec<(u64, Call, &[u64])> = (0..length)
            .map(|number| (if number % 10 == 3 { 1 << 40 } else { (number + 2) << 33 }, Call::of(1, 1), &[5_u64][..]))
            .collect();
        Period::of(&launches, 1.0)
    }

    fn following(length: u64) -> Following {
        let moves = Entry::new(Weak::new(), 0, 1, 0);
        Following::new(&period(length), Schedule::new(vec![moves]), Trial::new(1000.0))
    }

    #[test]
    fn rounds_begin_one_after_the_other_and_unknown_launches_count() {
        let mut following = following(640);
        let mut rounds = Vec::new();
        for turn in 0..2_u64 {
            for number in 0..640_u64 {
                // One launch in between that the period does not have; those of which there are many say nothing.
                let signatures: &[u64] = match number {
                    100 => &[0xdead, 102 << 33],
                    _ if number % 10 == 3 => &[1 << 40],
                    _ => &[(number + 2) << 33],
                };
                for signature in signatures {
                    if let Step::Round { round, .. } = following.launched(*signature) {
                        rounds.push((turn, round));
                    }
                }
            }
        }
        let expected: Vec<(u64, usize)> = (0..2).flat_map(|turn| (0..ROUNDS).map(move |round| (turn, round))).collect();
        assert_eq!(rounds, expected);
    }

    #[test]
    fn one_launch_that_belongs_elsewhere_leads_nobody_astray_and_some_in_turn_do() {
        let mut following = following(640);
        let mut rounds = |numbers: &mut dyn Iterator<Item = u64>| -> Vec<usize> {
            let steps = numbers.map(|number| following.launched((number + 2) << 33));
            steps.filter_map(|step| if let Step::Round { round, .. } = step { Some(round) } else { None }).collect()
        };
        rounds(&mut (0..105));
        assert_eq!(rounds(&mut (105..125).chain([500]).chain(126..150)), [11, 12, 13, 14]);
        // Twenty launches are left out.
        assert_eq!(rounds(&mut (170..199)), [15, 17, 18, 19]);
    }

    #[test]
    fn a_program_that_does_something_else_is_lost() {
        let mut following = following(640);
        let lost = (0..2000_u64).position(|number| following.launched(number << 50 | 0x77) == Step::Lost);
        assert!(lost.is_some_and(|lost| lost < 700), "{lost:?}");
    }

    #[test]
    fn a_program_that_does_the_same_in_another_order_is_lost_unless_all_stays() {
        let shuffled = || (0..6400_u64).map(|number| (number * 77 % 640 + 2) << 33);
        let mut moves = following(640);
        assert!(shuffled().any(|signature| moves.launched(signature) == Step::Lost));
        let mut stays = Following::new(&period(640), Schedule::new(Vec::new()), Trial::new(1000.0));
        assert!(!shuffled().any(|signature| stays.launched(signature) == Step::Lost));
        assert!((0..2000_u64).any(|number| stays.launched(number << 50 | 0x77) == Step::Lost));
    }

    #[test]
    fn a_step_whose_beginning_is_left_out_begins_all_the_same() {
        let mut following = following(640);
        let signatures = (0..20).flat_map(|_| (12..630_u64).map(|number| (number + 2) << 33));
        let begun = signatures
            .filter(|signature| matches!(following.launched(*signature), Step::Round { begins_anew: true, .. }));
        assert!(begun.count() >= 18);
    }

    #[test]
    fn short_steps_have_their_plan_carried_out_if_all_stays() {
        let launches: Vec<(u64, Call, &[u64])> =
            (0..300).map(|number| (number % 3 + 1, Call::of(1, 1), &[5_u64][..])).collect();
        let schedule = || Schedule::new(Vec::new());
        let mut stays = Following::new(&Period::of(&launches, 1.0), schedule(), Trial::new(1000.0));
        let steps: Vec<Step> = (0..900_u64).map(|number| stays.launched(number % 3 + 1)).collect();
        assert!(steps.iter().any(|step| matches!(step, Step::Round { .. })) && !steps.contains(&Step::Lost));
    }

    #[test]
    fn a_plan_that_makes_nothing_faster_is_given_up() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let run = |before: f64| {
            let mut trial = Trial::new(before);
            (0..10).any(|turn| trial.turn(start + second * turn))
        };
        assert!(!run(1.5));
        assert!(run(1.0));
    }
}
