//! Help, version and wrong use.

use crate::context::TestContext;

#[test]
fn help_names_the_commands() {
    insta::assert_snapshot!(TestContext::new().run(["--help"]), @"
    exit_code: 0
    ----- stdout -----
    Explains GPU memory: where it went, why it ran out, what leaks, what to change

    Usage: gpuheap [OPTIONS] <COMMAND>

    Commands:
      explain      Explain a recording: verdict, what to change, where the memory went
      whatif       Find the allocator settings that waste least, by replay
      diff         Compare two recordings: by class, by line, each step
      check        Check recordings against a budget, for continuous integration
      open         Open a recording's page in the browser
      serve        Serve the pages of recordings, a folder of them or a large one, on this machine
      tui          Look around in a recording on a terminal, over SSH too
      export       Export a recording to the tools that you have: Perfetto, pprof, speedscope, Parquet,
                   …
      fit          Know whether a model fits before it runs, and what makes it fit
      run          Run a program within a memory budget, past the card's size, yielding to others
      ps           List what runs under `gpuheap run`, and what every process of it holds
      yield        Let a process move its memory to the host, for others to use the device
      wake         Let a process that yielded move its memory back
      completions  Print a script that completes commands and options in a shell
      man          Print the manual page
      help         Print this message or the help of the given subcommand(s)

    Options:
          --color <WHEN>  When to use color; `auto` is for terminals only and respects `NO_COLOR` and
                          `CLICOLOR_FORCE` [default: auto] [possible values: auto, always, never]
      -h, --help          Print help
      -V, --version       Print version

    ----- stderr -----
    ");
}

#[test]
fn help_of_explain_has_examples() {
    insta::assert_snapshot!(TestContext::new().run(["explain", "--help"]), @r#"
    exit_code: 0
    ----- stdout -----
    Explain a recording: verdict, what to change, where the memory went

    Reads a memory snapshot of PyTorch, pickle or JSON, plain or compressed (gzip, zstd). Nothing in the
    file is run, and no GPU is needed.

    Usage: gpuheap explain [OPTIONS] <FILE>

    Arguments:
      <FILE>
              The recording: a file, a folder that holds one, or `-` for standard input

    Options:
          --json
              Print one JSON object with exact bytes, and nothing else

          --md
              Print Markdown for an issue or a pull request

      -o, --output <PATH>
              Write to this file instead of standard output

          --width <N>
              Columns of the text [default: the terminal's, at most 120; 80 if there is none]

          --details
              Show everything: evidence, stacks, holders, rules of the classes, all moments (JSON and
              Markdown always do)

          --html <PATH>
              Write the report as one HTML file, to be opened in a browser, with charts, a flame graph
              and the map of memory; it needs no network. `-` is standard output

          --device <N>
              Explain the device with this ordinal [default: the one with an OOM, else the fullest]

          --limit <SIZE>
              Close the account to this size, such as the card's: `80GiB`, `24GB` or bytes

          --at <MOMENT>
              Describe where the memory was at this moment [default: oom if there was one, else peak]

              Possible values:
              - peak:          Most allocated memory
              - peak-reserved: Most reserved memory
              - oom:           The last failed allocation
              - end:           After the last event

          --color <WHEN>
              When to use color; `auto` is for terminals only and respects `NO_COLOR` and
              `CLICOLOR_FORCE`
              
              [default: auto]
              [possible values: auto, always, never]

      -h, --help
              Print help (see a summary with '-h')

    Examples:
      gpuheap explain snapshot.pickle              the answer on one screen
      gpuheap explain snapshot.pickle --details    with evidence, stacks and rules
      gpuheap explain snapshot.pickle --html report.html
      gpuheap explain snapshot.pickle --json | jq .verdict
      gpuheap explain snapshot.pickle --md --output report.md
      zstdcat snapshot.pickle.zst | gpuheap explain -

    To record a snapshot in PyTorch:
      # before the model is built
      torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
      # at the end, or after an OOM
      torch.cuda.memory._dump_snapshot("snapshot.pickle")

    Exit codes: 0 done (whatever the verdict), 2 bad input or use

    ----- stderr -----
    "#);
}

#[test]
fn help_of_the_other_commands() {
    for command in ["whatif", "diff", "check", "open", "serve", "tui", "fit", "run", "ps", "yield", "wake"] {
        insta::assert_snapshot!(format!("help_{command}"), TestContext::new().run([command, "--help"]));
    }
    let text = |arguments: &[&str]| TestContext::new().run(arguments);
    assert_eq!(text(&["help", "whatif"]), text(&["whatif", "--help"]));
    let commands =
        ["explain", "whatif", "diff", "check", "open", "serve", "tui", "export", "fit", "run", "ps", "yield", "wake"];
    for command in commands.into_iter().chain(["completions", "man"]) {
        let help = text(&[command, "-h"]);
        let options: Vec<&str> =
            help.lines().filter(|line| line.starts_with(' ') && line.trim_start().starts_with('-')).collect();
        let place = options.iter().position(|line| line.contains("--color"));
        assert_eq!(place, options.len().checked_sub(2), "{help}");
    }
}

#[test]
fn no_room_at_all() {
    for command in ["explain", "whatif"] {
        let output = TestContext::new().command().args([command, "x", "--limit", "0"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("invalid value '0' for '--limit <SIZE>'"));
    }
}

#[test]
fn version() {
    insta::assert_snapshot!(TestContext::new().run(["--version"]), @"
    exit_code: 0
    ----- stdout -----
    gpuheap [VERSION]

    ----- stderr -----
    ");
}

#[test]
fn no_command() {
    let context = TestContext::new();
    let output = context.command().output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}

#[test]
fn unknown_command() {
    insta::assert_snapshot!(TestContext::new().run(["explian", "x"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: unrecognized subcommand 'explian'

      tip: a similar subcommand exists: 'explain'

    Usage: gpuheap [OPTIONS] <COMMAND>

    For more information, try '--help'.
    ");
}

#[test]
fn a_file_instead_of_a_command() {
    let context = TestContext::new().with_file("my run.pickle", b"\x80\x04.");
    insta::assert_snapshot!(context.run(["my run.pickle", "--json"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: `my run.pickle` is a file and no command

    hint: `gpuheap explain 'my run.pickle'` explains it
    ");
}

#[test]
fn numbers_that_lack_a_unit() {
    insta::assert_snapshot!(TestContext::new().run(["explain", "x", "--limit", "24"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: invalid value '24' for '--limit <SIZE>': 24 bytes are less than any card has: did you mean `24GiB`?

    For more information, try '--help'.
    ");
    let text = TestContext::new().run(["check", "x", "--max-peak", "24576"]);
    assert!(text.contains("did you mean `24576MiB`?"), "{text}");
    for limit in ["24KiB", "1048576"] {
        let text = TestContext::new().run(["explain", "missing.pickle", "--limit", limit]);
        assert!(text.contains("Failed to open"), "{text}");
    }
}

#[test]
fn no_file() {
    insta::assert_snapshot!(TestContext::new().run(["explain"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: the following required arguments were not provided:
      <FILE>

    Usage: gpuheap explain <FILE>

    For more information, try '--help'.
    ");
}

#[test]
fn json_or_markdown() {
    insta::assert_snapshot!(TestContext::new().run(["explain", "x", "--json", "--md"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: the argument '--json' cannot be used with '--md'

    Usage: gpuheap explain --json <FILE>

    For more information, try '--help'.
    ");
}

#[test]
fn sizes_that_are_none() {
    insta::assert_snapshot!(TestContext::new().run(["explain", "x", "--limit", "24 apples"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: invalid value '24 apples' for '--limit <SIZE>': `24 apples` is not an amount of memory: write `24GiB`, `24GB`, `512MiB` or a plain number of bytes

    For more information, try '--help'.
    ");
}

#[test]
fn moments_that_are_none() {
    insta::assert_snapshot!(TestContext::new().run(["explain", "x", "--at", "noon"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: invalid value 'noon' for '--at <MOMENT>'
      [possible values: peak, peak-reserved, oom, end]

      tip: a similar value exists: 'oom'

    For more information, try '--help'.
    ");
}

#[test]
fn pages_that_are_too_narrow() {
    insta::assert_snapshot!(TestContext::new().run(["explain", "x", "--width", "12"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: invalid value '12' for '--width <N>': 12 is not in 40..=1000

    For more information, try '--help'.
    ");
}
