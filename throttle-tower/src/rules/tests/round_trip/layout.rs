//! Values as TOML, in any of the ways in which one can write them.

/// A value that a file has.
#[derive(Clone, Debug)]
pub(super) enum Toml {
    Text(String),
    Number(u64),
    Flag(bool),
    List(Vec<Toml>),
    Table(Vec<(String, Toml)>),
}

impl Toml {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn texts<'t>(texts: impl IntoIterator<Item = &'t str>) -> Self {
        Self::List(texts.into_iter().map(Self::text).collect())
    }

    pub(super) fn table<const N: usize>(fields: [(&str, Option<Self>); N]) -> Self {
        Self::Table(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
    }

    pub(super) fn with(mut self, name: &str, value: Option<Self>) -> Self {
        if let (Self::Table(fields), Some(value)) = (&mut self, value) {
            fields.push((name.to_owned(), value));
        }
        self
    }
}

/// Numbers that a seed determines.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// How a document is written: a choice wherever there is one.
pub(super) struct Layout(Random);

impl Layout {
    pub(super) fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// A document: fields of the root, its sections, and its limits, each with the field that it is an element of.
    pub(super) fn document(&mut self, root: &Toml, sections: &Toml, limits: &[(&str, Toml)]) -> String {
        let (Toml::Table(root), Toml::Table(sections)) = (root, sections) else { panic!("a document is a table") };
        let (mut above, mut below) = (String::new(), String::new());
        for (name, value) in root {
            above += &self.field(name, value);
        }
        for (name, value) in sections {
            self.section(name, name, value, &mut above, &mut below);
        }
        let kinds: Vec<&str> = limits.iter().map(|(kind, _)| *kind).collect();
        match kinds.first() {
            None => above += &self.field("limit", &Toml::List(Vec::new())),
            // The order of limits is that of the file, so that limits of one kind alone can be a list.
            Some(kind) if kinds.iter().all(|other| other == kind) && self.one_in(4) => {
                let all = Toml::List(limits.iter().map(|(_, limit)| limit.clone()).collect());
                above += &self.field(kind, &all);
            }
            Some(_) => limits.iter().for_each(|(kind, limit)| below += &self.element(kind, limit)),
        }
        above + &below
    }

    /// A table in its field, under a header, or field by field.
    fn section(&mut self, path: &str, name: &str, value: &Toml, above: &mut String, below: &mut String) {
        match value {
            Toml::Table(fields) if !fields.is_empty() => match self.0.below(3) {
                0 => {
                    let fields: String = fields.iter().map(|(name, value)| self.field(name, value)).collect();
                    *below += &format!("\n{}[{}]{}\n{fields}", self.space(), self.path(path), self.comment());
                }
                1 => {
                    let name = self.key(name);
                    for (field, value) in fields {
                        let (dot, line) = (self.pick(&[".", " . "]), self.field(field, value));
                        *above += &format!("{name}{dot}{line}");
                    }
                }
                _ => *above += &self.field(name, value),
            },
            value => *above += &self.field(name, value),
        }
    }

    /// A limit under a header, its fields in any order.
    fn element(&mut self, kind: &str, limit: &Toml) -> String {
        let Toml::Table(fields) = limit else { panic!("a limit is a table") };
        let mut fields: Vec<&(String, Toml)> = fields.iter().collect();
        for place in (1..fields.len()).rev() {
            fields.swap(place, self.0.below(place + 1));
        }
        let (mut above, mut below) = (String::new(), String::new());
        for (name, value) in fields {
            self.section(&format!("{kind}.{name}"), name, value, &mut above, &mut below);
        }
        format!("\n[[{kind}]]{}\n{above}{below}", self.comment())
    }

    fn field(&mut self, name: &str, value: &Toml) -> String {
        let (before, after) = (self.space(), self.space());
        format!("{}{before}={after}{}{}\n", self.key(name), self.value(value), self.comment())
    }

    fn path(&mut self, path: &str) -> String {
        path.split('.').map(|name| self.key(name)).collect::<Vec<_>>().join(".")
    }

    /// A name with `-` or `_`, bare or in quotes.
    fn key(&mut self, name: &str) -> String {
        let name = name.replacen('-', self.pick(&["-", "_"]), 1);
        let is_bare = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if is_bare && !self.one_in(8) { name } else { format!("{name:?}") }
    }

    fn value(&mut self, value: &Toml) -> String {
        match value {
            Toml::Text(text) => self.text(text),
            Toml::Number(number) => match self.0.below(4) {
                0 => format!("{number:#x}"),
                1 => format!("+{number}"),
                2 if *number >= 1_000 => format!("{}_{:03}", number / 1_000, number % 1_000),
                _ => number.to_string(),
            },
            Toml::Flag(is) => is.to_string(),
            Toml::List(list) => {
                let lines = self.one_in(2);
                let between = if lines { format!(",{}\n  ", self.comment()) } else { format!(",{}", self.space()) };
                let all: Vec<String> = list.iter().map(|value| self.value(value)).collect();
                let end = if lines && !list.is_empty() { ",\n" } else { "" };
                format!("[{}{}{end}]", self.space(), all.join(&between))
            }
            Toml::Table(fields) => {
                let field = |layout: &mut Self, (name, value): &(String, Toml)| {
                    let (before, after) = (layout.space(), layout.space());
                    format!("{}{before}={after}{}", layout.key(name), layout.value(value))
                };
                let all: Vec<String> = fields.iter().map(|entry| field(self, entry)).collect();
                format!("{{{}{}{}}}", self.space(), all.join(", "), self.space())
            }
        }
    }

    /// Printable ASCII in one of the four kinds of quotes.
    fn text(&mut self, text: &str) -> String {
        let basic = text.replace('\\', "\\\\").replace('"', "\\\"");
        match self.0.below(6) {
            0 if !text.contains('\'') => format!("'{text}'"),
            1 if !text.contains('\'') => format!("'''{text}'''"),
            2 => format!("\"\"\"\n{basic}\"\"\""),
            3 => format!("\"{}\"", basic.replace('a', "\\u0061")),
            _ => format!("\"{basic}\""),
        }
    }

    fn space(&mut self) -> &'static str {
        self.pick(&["", " ", " ", "  ", "\t"])
    }

    fn comment(&mut self) -> &'static str {
        self.pick(&["", "", "", " # limit = \"}]\"", "\n# a"])
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.0.below(many) == 0
    }

    fn pick(&mut self, choices: &[&'static str]) -> &'static str {
        choices[self.0.below(choices.len())]
    }
}
