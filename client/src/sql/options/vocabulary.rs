//! Options of the vocabularies: the values of categorical features that get an embedding of their own.

use volley_proto::spec::VocabularyRule;

use super::unread;
use crate::Result;

/// Options of the vocabularies, as given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VocabularyOptions {
    /// Minimum number of rows with a value.
    pub min_frequency: Option<usize>,
    /// Maximum number of values.
    pub max_vocabulary: Option<usize>,
    /// Number of buckets that values are hashed into instead.
    pub hash_buckets: Option<usize>,
}

impl VocabularyOptions {
    /// Returns the complete rule.
    ///
    /// # Errors
    /// Names an option that nothing reads.
    pub(super) fn settle(self) -> Result<VocabularyRule> {
        let Some(buckets) = self.hash_buckets else {
            return Ok(VocabularyRule::Values {
                min_frequency: self.min_frequency.unwrap_or(0) as u64,
                most: self.max_vocabulary,
            });
        };
        let given = [
            ("min_frequency", self.min_frequency),
            ("max_vocabulary", self.max_vocabulary),
        ];
        match given.into_iter().find_map(|(name, x)| Some((name, x?))) {
            Some((option, value)) => {
                let with = "no hash_buckets: hashed values are not counted".to_owned();
                Err(unread(option, value.to_string(), with))
            }
            None => Ok(VocabularyRule::Buckets(buckets)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_either_counted_or_hashed() {
        let settle = |min_frequency, max_vocabulary, hash_buckets| {
            let options = VocabularyOptions {
                min_frequency,
                max_vocabulary,
                hash_buckets,
            };
            options.settle()
        };
        let all = settle(None, None, None).unwrap();
        assert_eq!(all, VocabularyRule::default());
        let frequent = VocabularyRule::Values {
            min_frequency: 5,
            most: Some(9),
        };
        assert_eq!(settle(Some(5), Some(9), None).unwrap(), frequent);
        let hashed = settle(None, None, Some(7)).unwrap();
        assert_eq!(hashed, VocabularyRule::Buckets(7));
        let error = settle(None, Some(3), Some(7)).unwrap_err().to_string();
        assert!(
            error.contains("max_vocabulary") && error.contains("hash_buckets"),
            "{error}"
        );
    }
}
