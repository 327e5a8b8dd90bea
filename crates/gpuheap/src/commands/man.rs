//! `gpuheap man`: the manual page, of all subcommands, as roff.

use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::Cli;
use crate::errors::Error;
use crate::output;

pub(super) fn run() -> Result<ExitCode, Error> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    render(&command, &mut page).map_err(Error::Print)?;
    output::print(&page)?;
    Ok(ExitCode::SUCCESS)
}

/// What follows the options: indented lines stay as they are, others are filled.
fn examples(text: &str) -> String {
    let mut page = String::new();
    if text.is_empty() {
        return page;
    }
    page.push_str(".SH EXAMPLES\n");
    let mut lines = text.lines().peekable();
    lines.next_if_eq(&"Examples:");
    let mut is_kept = false;
    let mut is_open = false;
    for text in lines {
        let keeps = text.starts_with(' ');
        if keeps != is_kept {
            page.push_str(if keeps { ".nf\n" } else { ".fi\n" });
            is_kept = keeps;
            is_open = false;
        }
        if text.is_empty() {
            is_open = false;
            continue;
        }
        if !keeps && !is_open {
            page.push_str(".PP\n");
            is_open = true;
        }
        page.push_str(&line(text));
        page.push('\n');
    }
    if is_kept {
        page.push_str(".fi\n");
    }
    page
}

/// A line of text whose every sign stands for itself.
fn line(text: &str) -> String {
    let mut line = String::new();
    if text.starts_with(['.', '\'']) {
        line.push_str("\\&");
    }
    for sign in text.chars() {
        match sign {
            '\\' => line.push_str("\\e"),
            '-' => line.push_str("\\-"),
            '\'' => line.push_str("\\(aq"),
            '`' => line.push_str("\\(ga"),
            '^' => line.push_str("\\(ha"),
            '~' => line.push_str("\\(ti"),
            sign => line.push(sign),
        }
    }
    line
}

/// One page for all: a list of subcommands would refer to pages of their own, which there are none of.
fn render(command: &Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    let man = Man::new(command.clone());
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    let subcommands = || command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help");
    page.extend_from_slice(b".SH SUBCOMMANDS\n");
    for subcommand in subcommands() {
        let about = subcommand.get_about().map(ToString::to_string).unwrap_or_default();
        page.extend_from_slice(format!(".TP\n\\fB{}\\fR\n", subcommand.get_name()).as_bytes());
        page.extend_from_slice(format!("{}\n", line(&about)).as_bytes());
    }
    for subcommand in subcommands() {
        let man = Man::new(subcommand.clone());
        page.extend_from_slice(format!(".SH {}\n", subcommand.get_name().to_uppercase()).as_bytes());
        man.render_synopsis_section(page)?;
        man.render_description_section(page)?;
        man.render_options_section(page)?;
        let after = subcommand.get_after_help().map(ToString::to_string).unwrap_or_default();
        page.extend_from_slice(examples(&after).as_bytes());
    }
    man.render_version_section(page)
}
