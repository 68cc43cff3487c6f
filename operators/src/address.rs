//! Addresses as they are written: a path, `file:///…` or `s3://bucket/prefix`. Nothing is looked at.

use std::fmt;

/// What an address names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address<'a> {
    /// A path; a relative one starts wherever the reader says.
    Path(&'a str),
    /// A `file://` URL.
    FileUrl(&'a str),
    /// Objects in a bucket.
    S3 {
        /// The bucket.
        bucket: &'a str,
        /// The key, or the beginning of keys, as it is.
        prefix: &'a str,
    },
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError(String);

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AddressError {
    /// How an address is written.
    pub const HINT: &'static str = "use a path, file:///absolute/path or s3://bucket/prefix";
}

impl<'a> Address<'a> {
    /// Understands an address.
    pub fn parse(address: &'a str) -> Result<Self, AddressError> {
        let bad = |why: &str| Err(AddressError(format!("`{address}` is no usable address: {why}")));
        if address.trim().is_empty() {
            return bad("it is empty");
        }
        let Some((scheme, rest)) =
            address.split_once(':').filter(|(scheme, rest)| is_scheme(scheme) && rest.starts_with('/'))
        else {
            return Ok(Self::Path(address));
        };
        let Some(rest) = rest.strip_prefix("//") else {
            return bad(&format!("two slashes follow `{scheme}:`"));
        };
        match scheme {
            "file" => Ok(Self::FileUrl(address)),
            "s3" | "s3a" => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                if bucket.is_empty() {
                    return bad("it names no bucket");
                }
                Ok(Self::S3 { bucket, prefix })
            }
            other => bad(&format!("unknown scheme `{other}`")),
        }
    }
}

/// Whether a text before a colon is meant as a scheme; `C` and `dt=2026` are names.
fn is_scheme(text: &str) -> bool {
    text.len() > 1 && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(Address::parse("data/x"), Ok(Address::Path("data/x")));
        assert_eq!(Address::parse("dt=1:/x"), Ok(Address::Path("dt=1:/x")));
        assert_eq!(Address::parse("file:///data/x"), Ok(Address::FileUrl("file:///data/x")));
        assert_eq!(Address::parse("s3://b"), Ok(Address::S3 { bucket: "b", prefix: "" }));
        assert_eq!(Address::parse("s3a://b/a//c"), Ok(Address::S3 { bucket: "b", prefix: "a//c" }));
        for (bad, word) in [
            (" ", "it is empty"),
            ("s3://", "no bucket"),
            ("s3:///x", "no bucket"),
            ("s3:/b/x", "two slashes"),
            ("http://host/x", "unknown scheme `http`"),
        ] {
            let error = Address::parse(bad).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
