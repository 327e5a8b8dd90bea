//! The report of large recordings and of folders of them, from a server on this machine.
#![forbid(unsafe_code)]
