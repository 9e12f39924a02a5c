//! `#[derive(Module)]`: a struct whose fields are modules, parameters and plain values is a module. The names of the fields are
//! those of the state dict.
//!
//! Not here: the trait itself (`ferroflux::nn::Module`). The macro reads the tokens of a struct with named fields; it needs no
//! parser of Rust.

use proc_macro::{Delimiter, TokenStream, TokenTree};

/// Implements `ferroflux::nn::Module` for a struct with named fields. A field with `#[skip]` is left out.
#[proc_macro_derive(Module, attributes(skip))]
pub fn module(input: TokenStream) -> TokenStream {
    let text = match Struct::read(input) {
        Ok(found) => found.implementation(),
        Err(why) => format!("compile_error!({why:?});"),
    };
    text.parse().unwrap_or_default()
}

/// What the macro needs of a struct.
struct Struct {
    name: String,
    /// `<'a, T: Bound, const N: usize>` without the brackets.
    generics: String,
    fields: Vec<String>,
}

impl Struct {
    fn read(input: TokenStream) -> Result<Struct, String> {
        let mut tokens = input.into_iter().peekable();
        while let Some(token) = tokens.next() {
            if !matches!(&token, TokenTree::Ident(word) if word.to_string() == "struct") {
                continue;
            }
            let name = tokens.next().map(|t| t.to_string()).unwrap_or_default();
            let mut generics = String::new();
            for token in tokens {
                match token {
                    TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                        let generics = between_brackets(&generics);
                        return Ok(Struct { name, generics, fields: fields(group.stream()) });
                    }
                    TokenTree::Group(_) | TokenTree::Punct(_)
                        if generics.is_empty() && token.to_string() == ";" =>
                    {
                        break;
                    }
                    other => generics.push_str(&format!("{other} ")),
                }
            }
            break;
        }
        Err("`#[derive(Module)]` wants a struct with named fields".into())
    }

    fn implementation(&self) -> String {
        let names = parameters(&self.generics);
        let visits: Vec<String> = self
            .fields
            .iter()
            .map(|field| {
                let shown = field.strip_prefix("r#").unwrap_or(field);
                format!("::ferroflux::nn::Module::visit(&self.{field}, &::ferroflux::nn::join(path, {shown:?}), visitor);")
            })
            .collect();
        format!(
            "impl<{generics}> ::ferroflux::nn::Module for {name}<{names}> {{
                fn visit(&self, path: &str, visitor: &mut dyn ::ferroflux::nn::Visitor) {{ {visits} }}
            }}",
            generics = self.generics,
            name = self.name,
            visits = visits.join("\n"),
        )
    }
}

/// What stands between `<` and its `>`; nothing where there is none.
fn between_brackets(text: &str) -> String {
    let Some(start) = text.find('<') else { return String::new() };
    let mut depth = 0;
    for (at, c) in text.char_indices().skip(start) {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text[start + 1..at].trim().to_owned();
        }
    }
    String::new()
}

/// The names of generic parameters, without bounds and defaults.
fn parameters(generics: &str) -> String {
    let mut depth = 0;
    let mut items = vec![String::new()];
    for c in generics.chars() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                items.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(item) = items.last_mut() {
            item.push(c);
        }
    }
    let name = |item: &String| {
        let item = item.split([':', '=']).next().unwrap_or("").trim();
        item.strip_prefix("const ").unwrap_or(item).trim().to_owned()
    };
    items.iter().map(name).filter(|n| !n.is_empty()).collect::<Vec<_>>().join(", ")
}

/// The names of the fields, without those that are skipped.
fn fields(stream: TokenStream) -> Vec<String> {
    let mut found = Vec::new();
    let (mut last, mut skipped, mut in_type, mut depth) = (String::new(), false, false, 0i32);
    for token in stream {
        match &token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket && !in_type => {
                skipped |= group.stream().to_string() == "skip";
            }
            TokenTree::Punct(p) => match p.as_char() {
                '<' => depth += 1,
                '>' => depth -= 1,
                ':' if !in_type => {
                    if !skipped {
                        found.push(last.clone());
                    }
                    in_type = true;
                }
                ',' if depth == 0 => (in_type, skipped) = (false, false),
                _ => {}
            },
            TokenTree::Ident(word) if !in_type => last = word.to_string(),
            _ => {}
        }
    }
    found
}
