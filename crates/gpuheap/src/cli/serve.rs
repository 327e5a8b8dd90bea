//! The arguments of `gpuheap serve`.

use std::path::PathBuf;

use clap::Args;
use gpuheap_record::Bytes;
use gpuheap_serve::Listen;

const AFTER: &str = "\
Examples:
  gpuheap serve snapshot.pickle        one recording, however large
  gpuheap serve runs/                  a list, what differs between ranks, any two compared
  gpuheap serve runs/ --listen 8000 --no-open

On a machine without a browser, from the one that you sit at:
  ssh -L 7650:localhost:7650 HOST      then open http://localhost:7650/

Ranks are told by name (`rank3.pickle`, `step9/rank_03.pickle.gz`, `r3.pickle`) or by device.
Ctrl-C ends it.

Exit codes: 0 ended by Ctrl-C, 2 bad input or use";

/// What to serve, and to whom.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Serve {
    /// A recording, or a folder of recordings, which may be in folders of their own and may come while it runs
    #[arg(value_name = "FILE|DIR")]
    pub(crate) path: PathBuf,

    /// Listen here: a port, or an address with or without one [default: 127.0.0.1 and port 7650 or the next free one]
    ///
    /// Beyond this machine (`0.0.0.0`), whoever has the printed address, which then holds a random token, can read the
    /// recordings; what is sent is not encrypted.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<Listen>,

    /// Open no browser
    #[arg(long)]
    pub(crate) no_open: bool,

    /// Close the accounts to this size, such as the card's: `80GiB`, `24GB` or bytes
    #[arg(long, value_name = "SIZE", value_parser = super::limit)]
    pub(crate) limit: Option<Bytes>,

    /// Keep recordings in memory up to about this size; others are read again when looked at [default: half of the
    /// machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = super::limit)]
    pub(crate) memory: Option<Bytes>,
}
