//! `gpuheap man`: the manual page, of all subcommands, as roff.

use std::process::ExitCode;

use clap::CommandFactory;

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

/// The page of the command, then the parts of the pages of its subcommands that differ.
fn render(command: &clap::Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(page)?;
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        let man = clap_mangen::Man::new(subcommand.clone());
        page.extend_from_slice(format!(".SH {}\n", subcommand.get_name().to_uppercase()).as_bytes());
        man.render_synopsis_section(page)?;
        man.render_description_section(page)?;
        man.render_options_section(page)?;
        man.render_extra_section(page)?;
    }
    Ok(())
}
