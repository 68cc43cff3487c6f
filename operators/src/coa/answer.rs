//! When an answer is right: exact match after normalisation, best over the accepted answers.

/// Lower case, without ASCII punctuation, without the words a, an, the, white space collapsed, in this order.
///
/// The normaliser of the Agent Foundation Models' exact match, with one repair: where dropping articles would leave
/// nothing ("A", "The"), they are kept, so a text never becomes empty by it.
pub fn normalise(text: &str) -> String {
    let lower = text.to_lowercase();
    let plain: String = lower.chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let words: Vec<&str> = plain.split_whitespace().collect();
    let content: Vec<&str> = words.iter().copied().filter(|word| !matches!(*word, "a" | "an" | "the")).collect();
    if content.is_empty() { words.join(" ") } else { content.join(" ") }
}

/// Whether `answer` equals one of the accepted answers; `None` where no accepted answer says anything.
pub fn exact_match(accepted: &[String], answer: &str) -> Option<bool> {
    compare(accepted, |gold| gold == normalise(answer))
}

/// Whether `answer` contains one of the accepted answers as whole words; `None` as for [`exact_match`].
pub fn contains(accepted: &[String], answer: &str) -> Option<bool> {
    let answer = format!(" {} ", normalise(answer));
    compare(accepted, |gold| answer.contains(&format!(" {gold} ")))
}

fn compare(accepted: &[String], right: impl Fn(&str) -> bool) -> Option<bool> {
    let gold: Vec<String> = accepted.iter().map(|text| normalise(text)).filter(|text| !text.is_empty()).collect();
    if gold.is_empty() { None } else { Some(gold.iter().any(|text| right(text))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_verdicts() {
        let one = |gold: &str, answer: &str| exact_match(&[gold.to_owned()], answer);
        assert_eq!(one("The Who", "who"), Some(true));
        assert_eq!(one("A", "A"), Some(true));
        assert_eq!(one("A", "The answer is B"), Some(false));
        assert_eq!(one("The Arva River", "  the arva   river. "), Some(true));
        assert_eq!(one("", "x"), None);
        assert_eq!(exact_match(&[], "x"), None);
        assert_eq!(one("...", "x"), None);
        assert_eq!(contains(&["Derby".to_owned()], "It is the Derby, of course"), Some(true));
        assert_eq!(contains(&["Derby".to_owned()], "Derbyshire"), Some(false));
    }
}
