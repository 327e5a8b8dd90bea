//! Questions in an address: whole numbers with names, and nothing else.

use crate::error::Error;

/// The numbers of a question, such as `from=0&to=900`.
pub(crate) struct Query<'a> {
    pairs: Vec<(&'a str, u32)>,
}

impl<'a> Query<'a> {
    /// Reads a question that may have these `names`, each at most once.
    pub(crate) fn read(text: Option<&'a str>, names: &[&str]) -> Result<Self, Error> {
        let mut pairs: Vec<(&str, u32)> = Vec::new();
        for part in text.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let Some(known) = names.iter().find(|known| **known == name) else {
                return Err(Error::Query(format!("it may have {} only", list(names))));
            };
            if pairs.iter().any(|&(other, _)| other == name) {
                return Err(Error::Query(format!("`{known}` is there twice")));
            }
            // `+5` is a number to the standard library, and a space to browsers.
            let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            match value.parse() {
                Ok(number) if digits => pairs.push((name, number)),
                _ => return Err(Error::Query(format!("`{known}` must be a whole number below 2^32"))),
            }
        }
        Ok(Self { pairs })
    }

    /// The number with this name, which must be there.
    pub(crate) fn number(&self, name: &str) -> Result<u32, Error> {
        self.optional(name).ok_or_else(|| Error::Query(format!("`{name}` is missing")))
    }

    /// The number with this name, if it is there.
    pub(crate) fn optional(&self, name: &str) -> Option<u32> {
        self.pairs.iter().find(|&&(known, _)| known == name).map(|&(_, number)| number)
    }
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { format!("`{}`", names.join("`, `")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_by_name() {
        let query = Query::read(Some("to=9&from=0&"), &["from", "to", "points"]).unwrap();
        assert_eq!((query.number("from").unwrap(), query.number("to").unwrap()), (0, 9));
        assert_eq!(query.optional("points"), None);
        assert!(query.number("points").is_err());
        assert!(Query::read(None, &[]).is_ok());
    }

    #[test]
    fn everything_else_is_refused() {
        for text in
            ["tick", "tick=", "tick=-1", "tick=+1", "tick=1e3", "tick=4294967296", "tick=%31", "tick=1&tick=2", "x=1"]
        {
            assert!(Query::read(Some(text), &["tick"]).is_err(), "{text}");
        }
    }
}
