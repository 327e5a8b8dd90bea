//! Help, version and wrong use.

use crate::context::TestContext;

#[test]
fn help_names_the_commands() {
    insta::assert_snapshot!(TestContext::new().run(["--help"]), @"");
}

#[test]
fn help_of_explain_has_examples() {
    insta::assert_snapshot!(TestContext::new().run(["explain", "--help"]), @"");
}

#[test]
fn version() {
    insta::assert_snapshot!(TestContext::new().run(["--version"]), @"");
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
    insta::assert_snapshot!(TestContext::new().run(["explian", "x"]), @"");
}

#[test]
fn no_file() {
    insta::assert_snapshot!(TestContext::new().run(["explain"]), @"");
}

#[test]
fn json_or_markdown() {
    insta::assert_snapshot!(TestContext::new().run(["explain", "x", "--json", "--md"]), @"");
}

#[test]
fn sizes_that_are_none() {
    insta::assert_snapshot!(TestContext::new().run(["explain", "x", "--limit", "24 apples"]), @"");
}

#[test]
fn moments_that_are_none() {
    insta::assert_snapshot!(TestContext::new().run(["explain", "x", "--at", "noon"]), @"");
}

#[test]
fn pages_that_are_too_narrow() {
    insta::assert_snapshot!(TestContext::new().run(["explain", "x", "--width", "12"]), @"");
}
