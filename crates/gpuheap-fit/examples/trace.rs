//! Prints the trace of a transformer that is made here: layers, batch, sequence, width and words as arguments.
#![expect(clippy::print_stdout, reason = "what it is for")]
#![expect(clippy::unwrap_used, reason = "an example that cannot go on has failed")]

#[path = "../tests/it/model.rs"]
mod model;

use model::Model;

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let model = match *numbers {
        [layers, batch, sequence, width, words] => {
            Model { layers: usize::try_from(layers).unwrap(), batch, sequence, width, words }
        }
        _ => Model::default(),
    };
    println!("{}", model::text(model));
}
