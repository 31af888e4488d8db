//! A picture as text: 800 pixels wide, for light and for dark pages, with nothing from outside.

use std::fmt::{Display, Write as _};

pub(crate) const WIDTH: i64 = 800;

/// The name of a colour, on light ground, and on dark.
pub(crate) const COLOURS: [(&str, [u8; 3], [u8; 3]); 6] = [
    ("ground", [255, 255, 255], [13, 17, 23]),
    ("edge", [208, 215, 222], [61, 68, 77]),
    ("ink", [31, 35, 40], [230, 237, 243]),
    ("soft", [89, 99, 110], [145, 152, 161]),
    ("good", [9, 105, 218], [88, 166, 255]),
    ("bad", [188, 76, 0], [240, 136, 62]),
];

const FONTS: &str = "text{font:14px system-ui,sans-serif}\
    .title{font-size:19px;font-weight:600}.strong{font-weight:600}.small{font-size:13px}.big{font-size:22px}\
    .mono{font:13px ui-monospace,monospace;white-space:pre}.middle{text-anchor:middle}.end{text-anchor:end}\
    .line{fill:none;stroke-width:2}.thin{stroke-width:1}.dash{stroke-dasharray:6 4}.pale{fill-opacity:.18}\
    .half{fill-opacity:.5}";

pub(crate) struct Picture {
    height: i64,
    title: String,
    body: String,
}

impl Picture {
    pub(crate) fn new(height: i64, title: &str) -> Self {
        let mut picture = Self {
            height,
            title: title.to_owned(),
            body: String::new(),
        };
        picture.body += "<rect class=\"ground edge-line\" x=\"0.5\" y=\"0.5\" rx=\"10\"";
        let _ = writeln!(
            picture.body,
            " width=\"{}\" height=\"{}\"/>",
            WIDTH - 1,
            height - 1
        );
        picture.text("ink title", 24, 36, title);
        picture
    }

    /// A text whose first letter is at `x`, or its middle or end by its classes.
    pub(crate) fn text(&mut self, classes: &str, x: i64, y: i64, text: impl Display) {
        let text = text
            .to_string()
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        let _ = writeln!(
            self.body,
            "<text class=\"{classes}\" x=\"{x}\" y=\"{y}\">{text}</text>"
        );
    }

    pub(crate) fn rect(&mut self, classes: &str, [x, y, width, height]: [i64; 4], round: i64) {
        let place =
            format!("x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"{round}\"");
        let _ = writeln!(self.body, "<rect class=\"{classes}\" {place}/>");
    }

    /// Bars whose feet are at these points, all of one width and height: one shape, so that the
    /// file is small.
    pub(crate) fn bars(
        &mut self,
        class: &str,
        [width, height]: [i64; 2],
        feet: impl Iterator<Item = (i64, i64)>,
    ) {
        let bars: String = feet
            .map(|(x, y)| format!("M{x},{y}v-{height}h{width}v{height}z"))
            .collect();
        let _ = writeln!(self.body, "<path class=\"{class}\" d=\"{bars}\"/>");
    }

    pub(crate) fn line(&mut self, classes: &str, points: &[(i64, i64)]) {
        self.points("polyline", &format!("line {classes}"), points);
    }

    pub(crate) fn area(&mut self, classes: &str, points: &[(i64, i64)]) {
        self.points("polygon", classes, points);
    }

    /// A line with a head at its last point.
    pub(crate) fn arrow(&mut self, colour: &str, points: &[(i64, i64)]) {
        self.line(&format!("{colour}-line"), points);
        let [.., (from_x, from_y), (x, y)] = *points else {
            return;
        };
        let (dx, dy) = ((x - from_x).signum(), (y - from_y).signum());
        let head = [
            (x + dx, y + dy),
            (x - 9 * dx + 5 * dy, y - 9 * dy + 5 * dx),
            (x - 9 * dx - 5 * dy, y - 9 * dy - 5 * dx),
        ];
        self.area(colour, &head);
    }

    fn points(&mut self, shape: &str, classes: &str, points: &[(i64, i64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
        let _ = writeln!(
            self.body,
            "<{shape} class=\"{classes}\" points=\"{}\"/>",
            points.join(" ")
        );
    }

    /// The file. It can stand in a data URI between single quotes, which `#![doc]` uses: no `'`,
    /// `#`, `%` or blank line.
    pub(crate) fn finish(self) -> String {
        let (height, title) = (self.height, &self.title);
        let colours = |dark: bool| -> String {
            let rule = |(name, light, night): &(&str, [u8; 3], [u8; 3])| {
                let [r, g, b] = if dark { night } else { light };
                format!(".{name}{{fill:rgb({r},{g},{b})}}.{name}-line{{stroke:rgb({r},{g},{b})}}")
            };
            COLOURS.iter().map(rule).collect()
        };
        let (light, dark) = (colours(false), colours(true));
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" role=\"img\">\n<title>{title}</title>\n<style>{light}\n\
             @media(prefers-color-scheme:dark){{{dark}}}\n{FONTS}.line{{fill:none}}</style>\n{}</svg>\n",
            self.body
        );
        assert!(
            !svg.contains(['\'', '#', '%']) && !svg.contains("\n\n"),
            "{svg}"
        );
        svg
    }
}
