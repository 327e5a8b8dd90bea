//! A recording for the tools that people have: Perfetto, Chrome, pprof, speedscope, Firefox, folded stacks, CSV, Parquet.
#![forbid(unsafe_code)]
