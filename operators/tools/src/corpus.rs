//! A local corpus: full-text search (BM25) and page reading.

use std::collections::HashMap;

use tantivy::collector::TopDocs;
use tantivy::query::{BooleanQuery, BoostQuery, Occur, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption, STORED, STRING, Schema, TEXT, Value};
use tantivy::tokenizer::TextAnalyzer;
use tantivy::{Index, IndexReader, TantivyDocument, Term};

/// One document of a corpus.
#[derive(Clone, Debug)]
pub struct Document {
    /// Its address, unique.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Its whole text.
    pub text: String,
    /// What a search result shows of it; the beginning of the text where `None`.
    pub snippet: Option<String>,
}

/// A corpus could not be indexed.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// Two documents have one address.
    #[error("two pages have the address `{0}`")]
    Twice(String),
    /// The index.
    #[error("the corpus cannot be indexed")]
    Index(#[from] tantivy::TantivyError),
}

/// A searchable corpus in memory.
pub struct Corpus {
    documents: HashMap<String, Document>,
    reader: IndexReader,
    analyzer: TextAnalyzer,
    id: Field,
    title: Field,
    text: Field,
}

/// The title counts this many times as much as the text.
const TITLE_WEIGHT: f32 = 2.0;
/// Characters of text shown for a document without snippet.
const SNIPPET: usize = 160;

impl Corpus {
    /// Indexes the documents. The order they come in changes nothing.
    pub fn new(documents: impl IntoIterator<Item = Document>) -> Result<Self, CorpusError> {
        let mut schema = Schema::builder();
        let id = schema.add_text_field("id", STRING | STORED);
        let title = schema.add_text_field("title", TEXT);
        let text = schema.add_text_field("text", TEXT);
        let index = Index::create_in_ram(schema.build());
        // One thread and one segment: scores, and so the order of hits, do not depend on how work was divided.
        let mut writer = index.writer_with_num_threads(1, 64 << 20)?;
        let mut by_id: HashMap<String, Document> = HashMap::new();
        let mut sorted: Vec<Document> = documents.into_iter().collect();
        sorted.sort_by(|a, b| a.id.cmp(&b.id));
        for document in sorted {
            let mut entry = TantivyDocument::default();
            entry.add_text(id, &document.id);
            entry.add_text(title, &document.title);
            entry.add_text(text, &document.text);
            writer.add_document(entry)?;
            if let Some(other) = by_id.insert(document.id.clone(), document) {
                return Err(CorpusError::Twice(other.id));
            }
        }
        writer.commit()?;
        let analyzer = index.tokenizer_for_field(text)?;
        let reader = index.reader()?;
        Ok(Self { documents: by_id, reader, analyzer, id, title, text })
    }

    /// The document at an address.
    pub fn get(&self, id: &str) -> Option<&Document> {
        self.documents.get(id.trim())
    }

    /// The best documents for a query in plain words, best first; ties in order of address.
    pub fn search(&self, query: &str, limit: usize) -> Result<Vec<&Document>, CorpusError> {
        let mut terms: Vec<String> = Vec::new();
        let mut analyzer = self.analyzer.clone();
        analyzer.token_stream(query).process(&mut |token| terms.push(token.text.clone()));
        terms.sort();
        terms.dedup();
        let mut clauses: Vec<(Occur, Box<dyn Query>)> = Vec::new();
        for term in terms {
            let in_field = |field| -> Box<dyn Query> {
                Box::new(TermQuery::new(Term::from_field_text(field, &term), IndexRecordOption::WithFreqs))
            };
            clauses.push((Occur::Should, Box::new(BoostQuery::new(in_field(self.title), TITLE_WEIGHT))));
            clauses.push((Occur::Should, in_field(self.text)));
        }
        let searcher = self.reader.searcher();
        // More than asked for, so that documents with equal scores at the border are ordered by address.
        let top =
            searcher.search(&BooleanQuery::new(clauses), &TopDocs::with_limit(limit * 4 + 16).order_by_score())?;
        let mut hits: Vec<(f32, &Document)> = Vec::new();
        for (score, address) in top {
            let entry: TantivyDocument = searcher.doc(address)?;
            let id = entry.get_first(self.id).and_then(|value| value.as_str()).unwrap_or_default();
            if let Some(document) = self.documents.get(id) {
                hits.push((score, document));
            }
        }
        hits.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.id.cmp(&b.1.id)));
        Ok(hits.into_iter().take(limit).map(|(_, document)| document).collect())
    }
}

impl Document {
    /// What a search result shows.
    pub fn shown(&self) -> &str {
        match &self.snippet {
            Some(snippet) => snippet,
            None => {
                let end = self.text.char_indices().nth(SNIPPET).map_or(self.text.len(), |(at, _)| at);
                &self.text[..end]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(id: &str, text: &str) -> Document {
        Document { id: id.into(), title: id.into(), text: text.into(), snippet: None }
    }

    fn ids(hits: Vec<&Document>) -> Vec<&str> {
        hits.into_iter().map(|hit| hit.id.as_str()).collect()
    }

    #[test]
    fn titles_count_more_and_order_of_input_does_not() {
        let documents = [
            document("Laos", "a country on the Mekong"),
            document("Thailand", "borders Laos in the north"),
            document("Peru", "a country in the Andes"),
        ];
        let corpus = Corpus::new(documents.clone()).unwrap();
        assert_eq!(ids(corpus.search("LAOS?", 2).unwrap()), ["Laos", "Thailand"]);
        assert_eq!(ids(corpus.search("country", 5).unwrap()), ["Laos", "Peru"]);
        let reversed = Corpus::new(documents.into_iter().rev()).unwrap();
        assert_eq!(ids(reversed.search("country", 5).unwrap()), ["Laos", "Peru"]);
        assert!(corpus.search("(unbalanced AND [query", 3).unwrap().is_empty());
        assert!(corpus.search("", 3).unwrap().is_empty());
        assert!(corpus.get(" Peru ").is_some());
    }

    #[test]
    fn two_documents_cannot_have_one_address() {
        let error = Corpus::new([document("a", "x"), document("a", "y")]).err().unwrap();
        assert!(matches!(error, CorpusError::Twice(id) if id == "a"));
    }
}
