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

/// One page for all: a list of subcommands would refer to pages of their own, which there are none of.
fn render(command: &Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    let man = Man::new(command.clone());
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        let man = Man::new(subcommand.clone());
        page.extend_from_slice(format!(".SH {}\n", subcommand.get_name().to_uppercase()).as_bytes());
        man.render_synopsis_section(page)?;
        man.render_description_section(page)?;
        man.render_options_section(page)?;
        man.render_extra_section(page)?;
    }
    man.render_version_section(page)
}
