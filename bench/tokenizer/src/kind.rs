//! The kinds of text.

/// A language or a kind of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    English,
    Code,
    Chinese,
    Japanese,
    Arabic,
    Russian,
    Korean,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::English,
        Self::Code,
        Self::Chinese,
        Self::Japanese,
        Self::Arabic,
        Self::Russian,
        Self::Korean,
    ];

    pub(crate) fn name(self) -> &'static str {
        let names = [
            "English", "code", "Chinese", "Japanese", "Arabic", "Russian", "Korean",
        ];
        names[self as usize]
    }

    /// Returns the file of collected text.
    pub(crate) fn file(self) -> String {
        format!("{}.txt", self.name().to_lowercase())
    }
}
