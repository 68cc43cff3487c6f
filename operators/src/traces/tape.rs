//! A first reading of a record: whether it is JSON beyond doubt, and where its values stand, before any text is copied.
//!
//! A *tape* lists the values of a record in the order of its bytes, each with its place and with the place on the tape
//! behind what is in it. It is made without allocation, so a record can be judged by one field for the price of finding
//! its quotes; the texts of records that go on are copied once, from here.
//!
//! A tape accepts less than [`super::json::read`] and never more: [`Tape::read`] says no to whatever may be a fault, and
//! leaves it to that to say which.

use std::borrow::Cow;
use std::collections::HashSet;

use memchr::{memchr, memchr2};

use super::borrowed::Value;

/// A record as a tape; used again for the next.
#[derive(Default)]
pub struct Tape {
    nodes: Vec<Node>,
    /// Texts whose escapes are resolved.
    texts: String,
}

#[derive(Clone, Copy)]
struct Node {
    kind: Kind,
    /// Bytes of the record: of a string what is between its quotes.
    start: u32,
    end: u32,
    /// The node behind this one and all that is in it.
    next: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Null,
    True,
    False,
    Number,
    /// A string that stands as it is read.
    Plain,
    /// A string with escapes.
    Escaped,
    /// A string whose escapes are resolved; its place is one in `texts`.
    Resolved,
    Array,
    /// Its nodes are keys and values by turns.
    Object,
}

/// Deeper records are left to the other reader, which has the same limit.
const DEEPEST: u32 = 120;
/// Objects with more keys are checked for a key that comes twice by hashing them.
const FEW_KEYS: usize = 24;
/// More room for texts than this is not kept for the next record.
const ROOM: usize = 4 << 20;

impl Tape {
    /// Reads a record. `None`: it may be faulty.
    pub fn read<'a>(&'a mut self, text: &'a str) -> Option<Record<'a>> {
        self.nodes.clear();
        if self.texts.capacity() > ROOM {
            self.texts = String::new();
        }
        u32::try_from(text.len()).ok()?;
        let mut reader = Reader { text, bytes: text.as_bytes(), at: 0, nodes: &mut self.nodes };
        reader.value(0)?;
        reader.blank();
        (reader.at == text.len()).then_some(Record { text, nodes: &mut self.nodes, texts: &mut self.texts })
    }
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    nodes: &'a mut Vec<Node>,
}

impl Reader<'_> {
    fn blank(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\n' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    /// The next byte that is not blank, passed over if it is `wanted`.
    fn take(&mut self, wanted: u8) -> bool {
        self.blank();
        let found = self.bytes.get(self.at) == Some(&wanted);
        self.at += usize::from(found);
        found
    }

    fn push(&mut self, kind: Kind, start: usize, end: usize) {
        let next = self.nodes.len() as u32 + 1;
        self.nodes.push(Node { kind, start: start as u32, end: end as u32, next });
    }

    fn value(&mut self, depth: u32) -> Option<()> {
        self.blank();
        match self.bytes.get(self.at)? {
            b'"' => self.string(),
            b'{' | b'[' if depth >= DEEPEST => None,
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'n' => self.word("null", Kind::Null),
            b't' => self.word("true", Kind::True),
            b'f' => self.word("false", Kind::False),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &str, kind: Kind) -> Option<()> {
        let start = self.at;
        self.bytes[start..].starts_with(word.as_bytes()).then_some(())?;
        self.at += word.len();
        self.push(kind, start, self.at);
        Some(())
    }

    fn array(&mut self, depth: u32) -> Option<()> {
        let first = self.nodes.len();
        self.push(Kind::Array, self.at, 0);
        self.at += 1;
        if !self.take(b']') {
            loop {
                self.value(depth + 1)?;
                if !self.take(b',') {
                    break;
                }
            }
            self.take(b']').then_some(())?;
        }
        self.close(first);
        Some(())
    }

    fn object(&mut self, depth: u32) -> Option<()> {
        let first = self.nodes.len();
        self.push(Kind::Object, self.at, 0);
        self.at += 1;
        if !self.take(b'}') {
            loop {
                self.blank();
                (self.bytes.get(self.at) == Some(&b'"')).then_some(())?;
                self.string()?;
                self.take(b':').then_some(())?;
                self.value(depth + 1)?;
                if !self.take(b',') {
                    break;
                }
            }
            self.take(b'}').then_some(())?;
        }
        self.close(first);
        self.keys_differ(first).then_some(())
    }

    fn close(&mut self, first: usize) {
        let next = self.nodes.len() as u32;
        let node = &mut self.nodes[first];
        (node.end, node.next) = (self.at as u32, next);
    }

    fn keys_differ(&self, object: usize) -> bool {
        let nodes = Nodes { text: self.text, nodes: self.nodes, texts: "" };
        let keys = || nodes.items(object).step_by(2);
        let mut few = [""; FEW_KEYS];
        let (mut count, mut plain) = (0, true);
        for key in keys() {
            let name = nodes.raw(key);
            plain &= self.nodes[key].kind == Kind::Plain;
            if let Some(place) = few.get_mut(count) {
                *place = name;
                if few[..count].contains(&name) {
                    return false;
                }
            }
            count += 1;
        }
        if plain && count <= FEW_KEYS {
            return true;
        }
        let mut seen = HashSet::with_capacity(count);
        keys().all(|key| seen.insert(nodes.string(key)))
    }

    fn string(&mut self) -> Option<()> {
        let start = self.at + 1;
        let mut kind = Kind::Plain;
        let mut at = start;
        loop {
            let found = at + memchr2(b'"', b'\\', self.bytes.get(at..)?)?;
            // Control characters must be escaped.
            if self.bytes[at..found].iter().fold(u8::MAX, |least, byte| least.min(*byte)) < b' ' {
                return None;
            }
            if self.bytes[found] == b'"' {
                self.at = found + 1;
                self.push(kind, start, found);
                return Some(());
            }
            kind = Kind::Escaped;
            at = found + escape(self.bytes.get(found + 1..)?)?.1;
        }
    }

    fn number(&mut self) -> Option<()> {
        let start = self.at;
        let digits = |at: usize| self.bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let mut at = start + usize::from(self.bytes[start] == b'-');
        let whole = digits(at);
        if whole == 0 || (whole > 1 && self.bytes[at] == b'0') {
            return None;
        }
        at += whole;
        let mut small = whole < 300;
        if self.bytes.get(at) == Some(&b'.') {
            let fraction = digits(at + 1);
            (fraction > 0).then_some(())?;
            at += 1 + fraction;
        }
        if matches!(self.bytes.get(at), Some(b'e' | b'E')) {
            small = false;
            at += 1 + usize::from(matches!(self.bytes.get(at + 1), Some(b'+' | b'-')));
            let exponent = digits(at);
            (exponent > 0).then_some(())?;
            at += exponent;
        }
        // What is too large for a float is a fault.
        if !small && !self.text[start..at].parse().is_ok_and(f64::is_finite) {
            return None;
        }
        self.at = at;
        self.push(Kind::Number, start, at);
        Some(())
    }
}

/// What an escape stands for and its length with the backslash; `bytes` begin behind that. `None` where it is none, or
/// half of a surrogate pair.
fn escape(bytes: &[u8]) -> Option<(char, usize)> {
    let meant = match bytes.first()? {
        b'n' => '\n',
        b'"' => '"',
        b'\\' => '\\',
        b't' => '\t',
        b'r' => '\r',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'u' => {
            let unit = hexadecimal(bytes.get(1..5)?)?;
            if !(0xD800..0xDC00).contains(&unit) {
                return Some((char::from_u32(unit)?, 6));
            }
            let second = hexadecimal(bytes.get(5..11)?.strip_prefix(b"\\u")?)?;
            (0xDC00..0xE000).contains(&second).then_some(())?;
            return Some((char::from_u32(0x10000 + ((unit - 0xD800) << 10) + (second - 0xDC00))?, 12));
        }
        _ => return None,
    };
    Some((meant, 2))
}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | char::from(*digit).to_digit(16)?))
}

/// A record that is JSON.
pub struct Record<'a> {
    text: &'a str,
    nodes: &'a mut Vec<Node>,
    texts: &'a mut String,
}

impl<'a> Record<'a> {
    /// Hands a field of the record to `look`.
    pub fn field<T>(&self, name: &str, look: impl FnOnce(Option<&Value<'_>>) -> T) -> T {
        let nodes = Nodes { text: self.text, nodes: self.nodes, texts: "" };
        if nodes.nodes[0].kind != Kind::Object {
            return look(None);
        }
        let Some(key) = nodes.items(0).step_by(2).find(|key| nodes.string(*key) == name) else { return look(None) };
        match nodes.nodes[key + 1].kind {
            Kind::Plain | Kind::Escaped => look(Some(&Value::String(&nodes.string(key + 1)))),
            _ => {
                let value: serde_json::Value = serde_json::from_str(nodes.raw(key + 1)).expect("it was read");
                look(Some(&Value::from(&value)))
            }
        }
    }

    /// The record.
    pub fn value(self) -> Value<'a> {
        self.texts.clear();
        // No text is longer than what it is written as: room for all keeps them where they are.
        self.texts.reserve(self.text.len());
        for node in self.nodes.iter_mut().filter(|node| node.kind == Kind::Escaped) {
            let start = self.texts.len();
            resolve(&self.text[node.start as usize..node.end as usize], self.texts);
            *node = Node { kind: Kind::Resolved, start: start as u32, end: self.texts.len() as u32, next: node.next };
        }
        Nodes { text: self.text, nodes: self.nodes, texts: self.texts }.value(0)
    }
}

/// Appends a string with its escapes resolved.
fn resolve(raw: &str, text: &mut String) {
    let mut rest = raw;
    while let Some(found) = memchr(b'\\', rest.as_bytes()) {
        let (meant, length) = escape(&rest.as_bytes()[found + 1..]).expect("its escapes were read");
        text.push_str(&rest[..found]);
        text.push(meant);
        rest = &rest[found + length..];
    }
    text.push_str(rest);
}

#[derive(Clone, Copy)]
struct Nodes<'a> {
    text: &'a str,
    nodes: &'a [Node],
    texts: &'a str,
}

impl<'a> Nodes<'a> {
    fn value(&self, at: usize) -> Value<'a> {
        match self.nodes[at].kind {
            Kind::Null => Value::Null,
            Kind::True => Value::Bool(true),
            Kind::False => Value::Bool(false),
            Kind::Number => Value::Number(serde_json::from_str(self.raw(at)).expect("its digits were read")),
            Kind::Plain | Kind::Escaped | Kind::Resolved => Value::String(self.resolved(at)),
            Kind::Array => Value::Array(self.items(at).map(|item| self.value(item)).collect()),
            Kind::Object => {
                let keys = self.items(at).step_by(2);
                Value::Object(keys.map(|key| (self.resolved(key), self.value(key + 1))).collect())
            }
        }
    }

    /// The nodes right below a list or object.
    fn items(&self, of: usize) -> impl Iterator<Item = usize> + Clone + 'a {
        let nodes = self.nodes;
        let end = nodes[of].next as usize;
        let first = Some(of + 1).filter(|first| *first < end);
        std::iter::successors(first, move |item| Some(nodes[*item].next as usize).filter(|next| *next < end))
    }

    fn raw(&self, at: usize) -> &'a str {
        let node = self.nodes[at];
        &self.text[node.start as usize..node.end as usize]
    }

    /// A string whose escapes are resolved, or without any.
    fn resolved(&self, at: usize) -> &'a str {
        let node = self.nodes[at];
        match node.kind {
            Kind::Resolved => &self.texts[node.start as usize..node.end as usize],
            _ => self.raw(at),
        }
    }

    /// A string before escapes are resolved.
    fn string(&self, at: usize) -> Cow<'a, str> {
        let raw = self.raw(at);
        if self.nodes[at].kind != Kind::Escaped {
            return Cow::Borrowed(raw);
        }
        let mut text = String::with_capacity(raw.len());
        resolve(raw, &mut text);
        Cow::Owned(text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;

    fn tape(text: &str) -> Option<Json> {
        Tape::default().read(text).map(|record| record.value().to_json())
    }

    #[test]
    fn it_reads_what_the_other_reader_reads() {
        let many: String = (0..40).map(|key| format!("\"k{key}\": {key}, ")).collect();
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        let texts = [
            "null",
            " true\t",
            "[false, [], {}, [ ] ,{ }]",
            "0",
            "-0",
            "-12.50e-3",
            "18446744073709551615",
            "18446744073709551616",
            "123456789012345678901234567890",
            "-9223372036854775809",
            "1E+2",
            "0.1",
            r#""""#,
            r#""a\n\t\r\b\f\/\\\"\u0000é\u00e9\u4e1C\ud83d\ude80 NaN""#,
            r#"{"a": 1, "b": {"a": [1, "x", {"a": null}]}, "": "é东"}"#,
            r#"{"a\n": 1, "a\\n": 2, "\u0061": 3}"#,
            &format!("{{{many} \"z\": 1}}"),
            &deep,
        ];
        for text in texts {
            let expected: Json = serde_json::from_str(text).unwrap();
            let found = tape(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(found, expected, "{text}");
            assert_eq!(found.to_string(), expected.to_string(), "{text}");
        }
    }

    #[test]
    fn it_accepts_nothing_that_the_other_reader_refuses() {
        let many: String = (0..40).map(|key| format!("\"k{key}\": {key}, ")).collect();
        let texts = [
            "",
            " ",
            "nul",
            "nulll",
            "[1,]",
            "[1 2]",
            "[1}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a: 1}",
            "{'a': 1}",
            "{\"a\": 1, \"a\": 2}",
            "{\"a\": 1, \"\\u0061\": 2}",
            "{\"x\": {\"a\": 1, \"b\": 3, \"a\": 2}}",
            &format!("{{{many} \"k3\": 1}}"),
            "01",
            "-",
            "1.",
            ".5",
            "+1",
            "1e",
            "1e999",
            &"9".repeat(400),
            "NaN",
            "-Infinity",
            "\"open",
            "\"tab\there\"",
            "\"nul\u{0}\"",
            r#""\x""#,
            r#""\u12g4""#,
            r#""\u+123""#,
            r#""\u12""#,
            r#""\ud83d""#,
            r#""\ud83dx\ude80""#,
            r#""\ude80""#,
            r#""\ud83d\ud83d""#,
            "{} {}",
            "\u{feff}{}",
            &format!("{}1{}", "[".repeat(200), "]".repeat(200)),
        ];
        for text in texts {
            assert!(tape(text).is_none(), "{text}");
            assert!(super::super::json::read(text.as_bytes(), false, &[]).is_err(), "{text}");
        }
    }

    /// Whatever is cut, doubled or overwritten in a record: both readers agree on the value, or the tape says no.
    #[test]
    fn damage_is_never_read_as_something_else() {
        let good = r#"{"q": "a \"b\" \ud83d\ude80", "n": [1, -2.5e3, 10], "o": {"x": null, "y": true}, "é": "C:\\"}"#;
        let (mut read, mut refused) = (0, 0);
        for at in 0..good.len() {
            for with in ["", "\"", "\\", "\\u", "1", "e", ",", "}", "]", "{", ":", " ", "\n", "NaN"] {
                for cut in 0..3 {
                    let mut bytes = good.as_bytes().to_vec();
                    bytes.splice(at..(at + cut).min(good.len()), with.bytes());
                    let Ok(text) = String::from_utf8(bytes) else { continue };
                    match tape(&text) {
                        Some(value) => {
                            let (expected, _) = super::super::json::read(text.as_bytes(), false, &[]).expect(&text);
                            assert_eq!(value, expected, "{text}");
                            read += 1;
                        }
                        None => {
                            assert!(super::super::json::read(text.as_bytes(), false, &[]).is_err(), "{text}");
                            refused += 1;
                        }
                    }
                }
            }
        }
        assert!(read > 500 && refused > 500, "{read} read, {refused} refused");
    }

    #[test]
    fn a_field_is_found_by_its_name() {
        let mut tape = Tape::default();
        let record = tape.read(r#"{"n": {"m": ["a\tb"]}, "\u006d": "x\ty", "b": true}"#).unwrap();
        let field = |name: &str| record.field(name, |value| value.map(Value::to_string));
        assert_eq!(field("m").as_deref(), Some(r#""x\ty""#));
        assert_eq!(field("n").as_deref(), Some(r#"{"m":["a\tb"]}"#));
        assert_eq!(field("b").as_deref(), Some("true"));
        assert_eq!(field("x"), None);
        assert!(tape.read("[1]").unwrap().field("m", |value| value.is_none()));
    }
}
