//! Scripts for shells, and the manual page.

use crate::context::TestContext;

fn stdout(arguments: &[&str]) -> String {
    let output = TestContext::new().command().args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    assert!(output.stderr.is_empty(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_shell_has_a_script() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = stdout(&["completions", shell]);
        assert!(script.contains("gpuheap"), "{shell}");
        for word in
            ["details", "whatif", "verify", "diff", "device-b", "check", "budget-file", "keep-trace", "no-move", "keep"]
        {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn unknown_shell() {
    insta::assert_snapshot!(TestContext::new().run(["completions", "tcsh"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: invalid value 'tcsh' for '<SHELL>'
      [possible values: bash, elvish, fish, powershell, zsh]

      tip: a similar value exists: 'zsh'

    For more information, try '--help'.
    ");
}

#[test]
fn the_manual_page_has_all_options() {
    let page = stdout(&["man"]);
    assert!(page.starts_with(".ie") || page.starts_with(".TH"), "{page}");
    let options = [
        "json",
        "md",
        "details",
        "device",
        "limit",
        "at",
        "output",
        "width",
        "color",
        "conf",
        "verify",
        "device\\-b",
        "max\\-waste",
        "budget\\-file",
        "format",
    ];
    for option in options {
        assert!(page.contains(&format!("\\-\\-{option}")), "{option}");
    }
    for command in ["EXPLAIN", "WHATIF", "DIFF", "CHECK", "RUN", "PS", "YIELD", "WAKE", "COMPLETIONS", "MAN"] {
        assert!(page.contains(&format!(".SH {command}\n")), "{command}");
    }
    // There is one page only.
    assert!(!page.contains("gpuheap\\-explain") && !page.contains("(1)\n"), "{page}");
}

#[test]
fn the_manual_page_breaks_no_example() {
    let page = stdout(&["man"]);
    assert!(!page.contains(".SH EXTRA"), "{page}");
    let mut kept = Vec::new();
    let mut is_kept = false;
    for line in page.lines() {
        match line {
            ".nf" => is_kept = true,
            ".fi" => is_kept = false,
            _ if is_kept => {
                kept.push(line.replace("\\-", "-").replace("\\(aq", "'").replace("\\(ga", "`").replace("\\e", "\\"));
            }
            _ => {}
        }
    }
    assert!(!is_kept);
    let mut count = 0;
    for command in
        ["explain", "whatif", "diff", "check", "open", "serve", "tui", "export", "run", "ps", "yield", "wake"]
    {
        let help = stdout(&[command, "--help"]);
        let (_, examples) = help.split_once("Examples:\n").unwrap();
        for line in examples.lines().filter(|line| line.starts_with(' ')) {
            assert!(kept.iter().any(|kept| kept == line), "{command}: {line}: {kept:#?}");
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
    for command in ["explain", "export"] {
        assert!(page.contains(&format!(".TP\n\\fB{command}\\fR\n")), "{command}");
    }
}
