//! Normalization as SentencePiece does it: characters are replaced by the longest entry of the map,
//! spaces become `▁`, spaces at the ends and repeated ones go, and one is put before the text.

use super::model_file::Spaces;
use super::symbols::Symbols;
use crate::error::Error;
use crate::normalize::Charsmap;
use crate::pieces::META;

/// The settings by which a text is normalized.
#[derive(Debug)]
pub(super) struct Normalizer {
    pub(super) charsmap: Option<Charsmap>,
    pub(super) spaces: Spaces,
}

/// A normalized text.
#[derive(Debug, Default)]
pub(super) struct Normalized {
    pub(super) text: String,
    /// The byte of the raw text from which each byte comes, and the end of the last one; empty if
    /// origins are not wanted.
    origins: Vec<usize>,
    wanted: bool,
}

/// Upper bound of the bytes that a replacement may have; those of published files have 33.
const MAX_REPLACEMENT_BYTES: usize = 1024;

impl Normalizer {
    /// Reads the map of characters in `bytes` as the file has it, or an empty one.
    pub(super) fn new(bytes: &[u8], spaces: Spaces) -> Result<Self, Error> {
        let mut charsmap = None;
        if !bytes.is_empty() {
            let path = "normalizer_spec.precompiled_charsmap";
            let invalid = |problem| Error::invalid(path, problem);
            let map = Charsmap::parse(bytes).map_err(invalid)?;
            if map.longest_replacement() > MAX_REPLACEMENT_BYTES {
                return Err(Error::invalid(
                    path,
                    format!("a replacement has more than {MAX_REPLACEMENT_BYTES} bytes"),
                ));
            }
            charsmap = Some(map);
        }
        Ok(Self { charsmap, spaces })
    }

    /// Returns the normalized text. `symbols` are left as they are.
    pub(super) fn apply(&self, raw: &str, symbols: Option<&Symbols>, wanted: bool) -> Normalized {
        let mut out = Normalized {
            text: String::with_capacity(raw.len() + raw.len() / 2 + 3),
            origins: Vec::new(),
            wanted,
        };
        let Spaces {
            add_dummy_prefix,
            remove_extra,
            as_suffix,
            ..
        } = self.spaces;
        let mut at = 0;
        while remove_extra && at < raw.len() {
            let (new, len) = self.next(&raw[at..], symbols);
            if new != " " {
                break;
            }
            at += len;
        }
        if at == raw.len() {
            return out;
        }
        if add_dummy_prefix && !as_suffix {
            self.push(" ", at, &mut out);
        }
        let mut after_space = remove_extra;
        while at < raw.len() {
            let (mut new, len) = self.next(&raw[at..], symbols);
            if after_space {
                new = new.trim_start_matches(' ');
            }
            if !new.is_empty() {
                self.push(new, at, &mut out);
                after_space = remove_extra && new.ends_with(' ');
            }
            at += len;
        }
        let space = if self.spaces.escape { META } else { ' ' };
        while remove_extra && out.text.ends_with(space) {
            out.text.pop();
            if wanted {
                at = out.origins[out.text.len()];
                out.origins.truncate(out.text.len());
            }
        }
        if add_dummy_prefix && as_suffix {
            self.push(" ", at, &mut out);
        }
        if wanted {
            out.origins.push(at);
        }
        out
    }

    /// Returns what becomes of the beginning of `text`, and the bytes of `text` that it stands for.
    #[inline]
    fn next<'a>(&'a self, text: &'a str, symbols: Option<&Symbols>) -> (&'a str, usize) {
        if let Some((len, _)) = symbols.and_then(|symbols| symbols.longest(text)) {
            return (&text[..len], len);
        }
        if let Some(map) = &self.charsmap
            && let Some((len, new)) = map.longest(text)
        {
            return (new, len);
        }
        let len = text.chars().next().map_or(0, char::len_utf8);
        (&text[..len], len)
    }

    fn push(&self, new: &str, origin: usize, out: &mut Normalized) {
        if self.spaces.escape && new.contains(' ') {
            for c in new.chars() {
                out.text.push(if c == ' ' { META } else { c });
            }
        } else {
            out.text.push_str(new);
        }
        if out.wanted {
            out.origins.resize(out.text.len(), origin);
        }
    }
}

impl Normalized {
    /// Returns the range of the raw text from which each byte comes.
    pub(super) fn alignment(&self) -> Vec<(usize, usize)> {
        let neighbours = self.origins.windows(2);
        neighbours.map(|pair| (pair[0], pair[1])).collect()
    }
}
