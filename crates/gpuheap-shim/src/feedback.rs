//! Whether a change of places was of use. What launches say of memory is an estimate; how fast the program launches is
//! not. A program that does the same again and again launches as many kernels a second as it makes steps, so a change
//! after which it became slower was wrong, and is undone.

/// A change that is on trial, and how long no other is tried.
#[derive(Debug)]
pub(crate) struct Feedback<T> {
    /// Launches a second before the change, and what undoes it.
    trial: Option<(f64, T)>,
    /// Comparisons to come in which nothing is tried.
    pause: u32,
    /// How many there will be after the next change that has to be undone.
    next_pause: u32,
}

/// What to do now.
#[derive(Debug, PartialEq)]
pub(crate) enum Advice<T> {
    /// To look for changes.
    Try,
    /// Nothing.
    Wait,
    /// To undo the last one.
    Undo(T),
}

/// So much slower is no accident.
const WORSE: f64 = 0.97;
/// Fewer launches than that tell nothing.
const LEAST: f64 = 200.0;

impl<T> Feedback<T> {
    /// Nothing is on trial.
    pub(crate) const fn new() -> Self {
        Self { trial: None, pause: 0, next_pause: 0 }
    }

    /// After a window with so many launches in so many seconds.
    pub(crate) fn judge(&mut self, launches: f64, seconds: f64) -> Advice<T> {
        let trial = self.trial.take();
        if let Some((before, undo)) = trial
            && launches >= LEAST
            && launches / seconds < before * WORSE
        {
            self.next_pause = (self.next_pause * 2).clamp(4, 64);
            self.pause = self.next_pause;
            return Advice::Undo(undo);
        }
        if self.pause > 0 {
            self.pause -= 1;
            return Advice::Wait;
        }
        Advice::Try
    }

    /// What is on trial is no longer to be judged: something else was changed as well.
    pub(crate) fn forget(&mut self) {
        self.trial = None;
    }

    /// A change is made after that window.
    pub(crate) fn made(&mut self, launches: f64, seconds: f64, undo: T) {
        self.trial = (launches >= LEAST).then_some((launches / seconds, undo));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_makes_it_slower_is_undone_and_the_next_comes_later_each_time() {
        let mut feedback = Feedback::new();
        let mut waits = Vec::new();
        for turn in 0..3 {
            assert_eq!(feedback.judge(1000.0, 1.0), Advice::Try, "{turn}");
            feedback.made(1000.0, 1.0, turn);
            assert_eq!(feedback.judge(900.0, 1.0), Advice::Undo(turn));
            let mut waited = 0;
            while waited < 100 && feedback.pause > 0 {
                assert_eq!(feedback.judge(1000.0, 1.0), Advice::Wait);
                waited += 1;
            }
            waits.push(waited);
        }
        assert_eq!(waits, [4, 8, 16]);
    }

    #[test]
    fn one_that_helps_or_cannot_be_told_stays() {
        let mut feedback = Feedback::new();
        feedback.made(1000.0, 1.0, 1);
        assert_eq!(feedback.judge(990.0, 1.0), Advice::Try, "that may be an accident");
        feedback.made(1000.0, 1.0, 2);
        assert_eq!(feedback.judge(5000.0, 2.0), Advice::Try);
        feedback.made(100.0, 1.0, 3);
        assert_eq!(feedback.judge(1.0, 1.0), Advice::Try, "too few launches before");
        feedback.made(1000.0, 1.0, 3);
        feedback.forget();
        assert_eq!(feedback.judge(500.0, 1.0), Advice::Try, "others moved as well");
        feedback.made(1000.0, 1.0, 4);
        assert_eq!(feedback.judge(10.0, 1.0), Advice::Try, "too few after");
    }
}
