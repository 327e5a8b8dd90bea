//! A value of the pickle machine: eight bytes, copied freely.

/// What a [`Value`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Something that no memory snapshot needs, such as raw bytes or a set: present, but not looked at.
    Opaque,
    /// `None`.
    None,
    /// `True` or `False`.
    Bool,
    /// An integer of at most 60 bits.
    Int,
    /// A larger integer, in a table of the host.
    Wide,
    /// A float, in a table of the host.
    Float,
    /// A text, in a table of the host.
    Text,
    /// A list of the host. It may still grow.
    List,
    /// A dict of the host. It may still grow.
    Dict,
    /// A tuple that the host understands.
    Tuple,
    /// Anything else that the host made out of a tuple.
    Made,
}

/// A value: its kind in the low four bits, above it an integer or the host's handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Value(u64);

const KIND_BITS: u32 = 4;

impl Value {
    pub(crate) const OPAQUE: Self = Self::pack(Kind::Opaque, 0);
    pub(crate) const NONE: Self = Self::pack(Kind::None, 0);

    const fn pack(kind: Kind, payload: u64) -> Self {
        Self((payload << KIND_BITS) | kind as u64)
    }

    pub(crate) const fn bool(value: bool) -> Self {
        Self::pack(Kind::Bool, value as u64)
    }

    /// `value`, if it fits.
    pub(crate) const fn int(value: i64) -> Option<Self> {
        let packed = value << KIND_BITS;
        if packed >> KIND_BITS == value { Some(Self(packed.cast_unsigned() | Kind::Int as u64)) } else { None }
    }

    /// An integer that always fits.
    pub(crate) const fn small(value: i32) -> Self {
        Self((((value as i64) << KIND_BITS).cast_unsigned()) | Kind::Int as u64)
    }

    /// Row `id` of the host's table of this kind.
    pub(crate) const fn handle(kind: Kind, id: u32) -> Self {
        Self::pack(kind, id as u64)
    }

    /// Like [`Value::handle`], with a label of the host's choice, which it can then read without a look-up.
    pub(crate) const fn labelled(kind: Kind, id: u32, label: u8) -> Self {
        Self::pack(kind, ((label as u64) << 32) | id as u64)
    }

    pub(crate) const fn kind(self) -> Kind {
        match self.0 & ((1 << KIND_BITS) - 1) {
            1 => Kind::None,
            2 => Kind::Bool,
            3 => Kind::Int,
            4 => Kind::Wide,
            5 => Kind::Float,
            6 => Kind::Text,
            7 => Kind::List,
            8 => Kind::Dict,
            9 => Kind::Tuple,
            10 => Kind::Made,
            _ => Kind::Opaque,
        }
    }

    /// The handle, if the value is of this kind.
    pub(crate) fn id_of(self, kind: Kind) -> Option<u32> {
        (self.kind() == kind).then(|| self.id())
    }

    /// The handle, whatever the kind.
    #[expect(clippy::cast_possible_truncation, reason = "handles are the low 32 bits of the payload")]
    pub(crate) const fn id(self) -> u32 {
        (self.0 >> KIND_BITS) as u32
    }

    /// The label, whatever the kind.
    #[expect(clippy::cast_possible_truncation, reason = "labels are the eight bits above the handle")]
    pub(crate) const fn label(self) -> u8 {
        (self.0 >> (KIND_BITS + 32)) as u8
    }

    pub(crate) const fn as_int(self) -> Option<i64> {
        if matches!(self.kind(), Kind::Int) { Some(self.0.cast_signed() >> KIND_BITS) } else { None }
    }

    pub(crate) const fn as_bool(self) -> Option<bool> {
        if matches!(self.kind(), Kind::Bool) { Some(self.0 >> KIND_BITS != 0) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_sixty_bits_come_back() {
        let limit = 1 << 59;
        for value in [0, 1, -1, 42, i64::from(i32::MIN), limit - 1, -limit] {
            assert_eq!(Value::int(value).and_then(Value::as_int), Some(value));
        }
        for value in [limit, -limit - 1, i64::MAX, i64::MIN] {
            assert!(Value::int(value).is_none(), "{value}");
        }
        assert_eq!(Value::small(-7), Value::int(-7).unwrap());
    }

    #[test]
    fn handles_keep_kind_and_label() {
        let text = Value::labelled(Kind::Text, u32::MAX, 200);
        assert_eq!((text.kind(), text.id(), text.label()), (Kind::Text, u32::MAX, 200));
        assert_eq!(text.id_of(Kind::List), None);
        assert_eq!(Value::bool(true).as_bool(), Some(true));
        assert_eq!(Value::bool(false).as_bool(), Some(false));
        assert_eq!(Value::NONE.as_bool(), None);
    }
}
