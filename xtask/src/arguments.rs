//! The command line. Written by hand: this crate is the first that a newcomer compiles, so it has no dependencies.

use std::path::PathBuf;

use crate::failure::Failure;
use crate::python;

/// What `cargo xtask --help` prints.
pub(crate) const HELP: &str = "\
What developers and CI run.

Usage: cargo xtask COMMAND

Commands:
  test [-- ARGS]    run every test: cargo-nextest if it is installed, else cargo test; then the doc tests
  lint              formatting, clippy, documentation, licences and sources of the dependencies
  loom              check lock-free code in every order in which threads and processes come to it; part of test
  fixtures          write a synthetic snapshot [--events N=1000000] [--out DIR=target/fixtures] [--seed N=1]
  bench             measure `gpuheap explain` against pickle.load [--strict: exit 1 if a bar is missed]; `bench shim`:
                    what the shim adds to a launch; `bench fit`: what an answer of `gpuheap fit` costs
  web               build the page's bundle from `web/` [--check: exit 1 if the kept one is another]; needs Node
  browser           test the page in Node and in Chromium [-- NAMES: only these files]; pictures: target/pictures
  exports           open what `gpuheap export` writes with the tools that it is for; needs Node and Python
  python            build, install, check and test the Python package [--frameworks: with PyTorch, JAX, TensorFlow,
                    7 GB; always if CI is set] [--release: the wheel as it is published] [-- ARGS: for pytest]
  gpu               make target/gpu/bundle, which runs all that needs a GPU on a machine that has one [--leaks DIR: with
                    the leak programs of that folder]
  fuzz              fuzz the importer [--target import|explain] [--seconds N: stop after N seconds, else on Ctrl-C]
  help              this text
";

const DEFAULT_EVENTS: u64 = 1_000_000;
const DEFAULT_SEED: u64 = 1;

/// One command with its options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Task {
    Help,
    Test { arguments: Vec<String> },
    Lint,
    Loom,
    Fixtures { out: Option<PathBuf>, events: u64, seed: u64 },
    Bench { which: Bench, strict: bool },
    Web { check: bool },
    Browser { names: Vec<String> },
    Exports,
    Python { options: python::Options, arguments: Vec<String> },
    Gpu { leaks: Option<PathBuf> },
    Fuzz { target: String, seconds: Option<u64> },
}

/// What to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bench {
    /// Reading, replaying, serving.
    All,
    /// What the shim costs a program.
    Shim,
    /// What an answer of `gpuheap fit` costs.
    Fit,
}

/// Reads the arguments after the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Task, Failure> {
    let mut arguments = Arguments(arguments.into_iter().collect());
    if arguments.help() {
        return Ok(Task::Help);
    }
    let name = arguments.0.remove(0);
    let task = match name.as_str() {
        "test" => Task::Test { arguments: arguments.rest() },
        "lint" => Task::Lint,
        "loom" => Task::Loom,
        "fixtures" => Task::Fixtures {
            out: arguments.value("--out")?.map(PathBuf::from),
            events: arguments.number("--events")?.unwrap_or(DEFAULT_EVENTS),
            seed: arguments.number("--seed")?.unwrap_or(DEFAULT_SEED),
        },
        "bench" => {
            let which = match (arguments.flag("shim"), arguments.flag("fit")) {
                (true, _) => Bench::Shim,
                (false, true) => Bench::Fit,
                (false, false) => Bench::All,
            };
            Task::Bench { which, strict: arguments.flag("--strict") }
        }
        "web" => Task::Web { check: arguments.flag("--check") },
        "browser" => Task::Browser { names: arguments.rest() },
        "exports" => Task::Exports,
        "python" => Task::Python {
            arguments: arguments.rest(),
            options: python::Options {
                frameworks: arguments.flag("--frameworks"),
                release: arguments.flag("--release"),
            },
        },
        "gpu" => Task::Gpu { leaks: arguments.value("--leaks")?.map(PathBuf::from) },
        "fuzz" => Task::Fuzz {
            target: arguments.value("--target")?.unwrap_or_else(|| "import".to_owned()),
            seconds: arguments.number("--seconds")?,
        },
        _ => return Err(Failure::usage(format!("Unknown command `{name}`"))),
    };
    match arguments.0.first() {
        None => Ok(task),
        Some(extra) => Err(Failure::usage(format!("Unexpected argument `{extra}` for `{name}`"))),
    }
}

/// What is still to be read. Options may stand in any order, as `--name VALUE` or `--name=VALUE`.
struct Arguments(Vec<String>);

impl Arguments {
    /// Whether help is asked for: no arguments at all, `help`, or `--help` anywhere before `--`.
    fn help(&self) -> bool {
        let own = self.0.iter().take_while(|argument| *argument != "--");
        self.0.first().is_none_or(|name| name == "help") || own.into_iter().any(|text| text == "--help" || text == "-h")
    }

    /// Everything after `--`, which is taken out together with it.
    fn rest(&mut self) -> Vec<String> {
        match self.0.iter().position(|argument| argument == "--") {
            Some(index) => self.0.drain(index..).skip(1).collect(),
            None => Vec::new(),
        }
    }

    fn flag(&mut self, name: &str) -> bool {
        let index = self.0.iter().position(|argument| argument == name);
        index.map(|index| self.0.remove(index)).is_some()
    }

    fn value(&mut self, name: &str) -> Result<Option<String>, Failure> {
        let joined = format!("{name}=");
        if let Some(index) = self.0.iter().position(|argument| argument.starts_with(&joined)) {
            return Ok(Some(self.0.remove(index)[joined.len()..].to_owned()));
        }
        let Some(index) = self.0.iter().position(|argument| argument == name) else {
            return Ok(None);
        };
        if index + 1 == self.0.len() {
            return Err(Failure::usage(format!("Missing value for `{name}`")));
        }
        let value = self.0.remove(index + 1);
        self.0.remove(index);
        Ok(Some(value))
    }

    /// A whole number, with underscores where the writer likes them.
    fn number(&mut self, name: &str) -> Result<Option<u64>, Failure> {
        let Some(text) = self.value(name)? else {
            return Ok(None);
        };
        match text.replace('_', "").parse() {
            Ok(number) => Ok(Some(number)),
            Err(error) => {
                Err(Failure::usage(format!("Failed to read `{text}` as the number of `{name}`")).cause(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Task, Failure> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn commands_and_defaults() {
        assert_eq!(parsed("lint").unwrap(), Task::Lint);
        assert_eq!(parsed("loom").unwrap(), Task::Loom);
        assert_eq!(parsed("test").unwrap(), Task::Test { arguments: vec![] });
        assert_eq!(parsed("fixtures").unwrap(), Task::Fixtures { out: None, events: 1_000_000, seed: 1 });
        assert_eq!(parsed("bench").unwrap(), Task::Bench { which: Bench::All, strict: false });
        assert_eq!(parsed("fuzz").unwrap(), Task::Fuzz { target: "import".into(), seconds: None });
    }

    #[test]
    fn options_in_any_order_and_either_form() {
        let expected = Task::Fixtures { out: Some(PathBuf::from("here")), events: 4_000_000, seed: 7 };
        assert_eq!(parsed("fixtures --events 4_000_000 --out here --seed 7").unwrap(), expected);
        assert_eq!(parsed("fixtures --seed=7 --out=here --events=4000000").unwrap(), expected);
        assert_eq!(parsed("bench --strict").unwrap(), Task::Bench { which: Bench::All, strict: true });
        assert_eq!(parsed("bench shim --strict").unwrap(), Task::Bench { which: Bench::Shim, strict: true });
        assert_eq!(parsed("bench fit").unwrap(), Task::Bench { which: Bench::Fit, strict: false });
        assert_eq!(parsed("web --check").unwrap(), Task::Web { check: true });
        let expected = Task::Fuzz { target: "explain".into(), seconds: Some(60) };
        assert_eq!(parsed("fuzz --seconds 60 --target explain").unwrap(), expected);
    }

    #[test]
    fn what_follows_two_dashes_is_for_the_test_runner() {
        let task = parsed("test -- --package gpuheap --help").unwrap();
        assert_eq!(task, Task::Test { arguments: vec!["--package".into(), "gpuheap".into(), "--help".into()] });
        assert_eq!(parsed("browser -- hostile").unwrap(), Task::Browser { names: vec!["hostile".into()] });
    }

    #[test]
    fn the_python_package_has_options_and_arguments() {
        let options = python::Options { frameworks: true, release: false };
        let expected = Task::Python { options, arguments: vec!["-k".into(), "isolate".into()] };
        assert_eq!(parsed("python --frameworks -- -k isolate").unwrap(), expected);
        assert_eq!(parsed("python").unwrap(), Task::Python { options: python::Options::default(), arguments: vec![] });
    }

    #[test]
    fn help_is_found_anywhere() {
        for line in ["", "help", "--help", "-h", "bench --help"] {
            assert_eq!(parsed(line).unwrap(), Task::Help, "{line:?}");
        }
    }

    #[test]
    fn bad_use_is_refused() {
        for line in ["tset", "lint now", "test fast", "fixtures --events", "fixtures --events many", "bench --strict=1"]
        {
            assert_eq!(parsed(line).unwrap_err().code(), 2, "{line:?}");
        }
    }

    #[test]
    fn help_names_every_command() {
        for name in ["test", "lint", "loom", "fixtures", "bench", "web", "browser", "python", "fuzz"] {
            assert!(HELP.lines().any(|line| line.trim_start().starts_with(&format!("{name} "))), "{name}");
        }
    }
}
