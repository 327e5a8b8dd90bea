//! What modules are made of here: PTX text, of which only the heads of kernels are read, for their names and for where
//! their parameters are. What a kernel does is a host function registered under its name, so that one text serves this
//! driver and the real one.

/// The head of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) name: String,
    /// Offset and size of each parameter.
    pub(crate) parameters: Vec<(usize, usize)>,
}

/// The heads in a text; nothing if it is no PTX.
pub(crate) fn heads(text: &str) -> Option<Vec<Head>> {
    let text = without_comments(text);
    if !text.trim_start().starts_with(".version") {
        return None;
    }
    let mut found = Vec::new();
    for part in text.split(".entry").skip(1) {
        let part = part.trim_start();
        let end = part.find(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '$')?;
        let (name, rest) = part.split_at(end);
        let rest = rest.trim_start();
        let parameters = match rest.strip_prefix('(') {
            Some(list) => parameters(&list[..list.find(')')?])?,
            None => Vec::new(),
        };
        found.push(Head { name: name.to_owned(), parameters });
    }
    Some(found)
}

fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    let mut text = lines.collect::<Vec<_>>().join("\n");
    while let Some(start) = text.find("/*") {
        let end = text[start..].find("*/").map_or(text.len(), |end| start + end + 2);
        text.replace_range(start..end, " ");
    }
    text
}

/// `.param .u64 a, .param .align 8 .b8 b[16]` as offsets and sizes.
fn parameters(list: &str) -> Option<Vec<(usize, usize)>> {
    let mut found = Vec::new();
    let mut end: usize = 0;
    for declaration in list.split(',').map(str::trim).filter(|declaration| !declaration.is_empty()) {
        let mut words = declaration.split_whitespace();
        if words.next() != Some(".param") {
            return None;
        }
        let (mut unit, mut align) = (None, None);
        let mut name = "";
        while let Some(word) = words.next() {
            match word {
                ".align" => align = Some(words.next()?.parse::<usize>().ok()?),
                ".ptr" | ".global" | ".const" | ".shared" | ".local" => {}
                _ => match word.strip_prefix('.') {
                    Some(kind) => unit = Some(kind.trim_start_matches(char::is_alphabetic).parse::<usize>().ok()? / 8),
                    None => name = word,
                },
            }
        }
        let unit = unit.filter(|unit| matches!(unit, 1 | 2 | 4 | 8 | 16))?;
        let count = match name.split_once('[') {
            Some((_, count)) => count.strip_suffix(']')?.parse::<usize>().ok()?,
            None => 1,
        };
        let offset = end.checked_next_multiple_of(align.unwrap_or(unit))?;
        let bytes = unit.checked_mul(count)?;
        end = offset.checked_add(bytes)?;
        found.push((offset, bytes));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_kernels_are_read_and_their_bodies_are_not() {
        let text = "// made by hand\n.version 7.0\n.target sm_75\n.address_size 64\n\
            .visible .entry fill(\n  .param .u64 fill_0,\n  .param .u32 fill_1,\n  .param .u64 fill_2 /* how many */\n)\n\
            { ret; }\n.entry none\n{ ret; }\n.visible .entry by_value(.param .u8 a, .param .align 8 .b8 b[24]) { ret; }";
        let heads = heads(text).unwrap();
        let named =
            |name: &str, parameters: &[(usize, usize)]| Head { name: name.into(), parameters: parameters.into() };
        assert_eq!(
            heads,
            [named("fill", &[(0, 8), (8, 4), (16, 8)]), named("none", &[]), named("by_value", &[(0, 1), (8, 24)])]
        );
    }

    #[test]
    fn what_is_no_ptx_is_refused() {
        assert_eq!(heads("\u{7f}ELF"), None);
        assert_eq!(heads(""), None);
        assert_eq!(heads(".version 7.0\n.entry cut(.param .u64 a"), None);
        assert_eq!(heads(".version 7.0\n.entry odd(.param .u7 a)"), None);
    }
}
