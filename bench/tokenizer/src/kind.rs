//! The kinds of text.

use serde::{Deserialize, Serialize};

/// A language or a kind of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
        match self {
            Self::English => "English",
            Self::Code => "code",
            Self::Chinese => "Chinese",
            Self::Japanese => "Japanese",
            Self::Arabic => "Arabic",
            Self::Russian => "Russian",
            Self::Korean => "Korean",
        }
    }

    /// Returns the file of collected text.
    pub(crate) fn file(self) -> String {
        format!("{}.txt", self.name().to_lowercase())
    }
}
