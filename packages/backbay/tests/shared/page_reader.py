"""What a browser would see of a page, without one."""

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.links, self.loads, self.text = [], [], [], [], []
        self.scripts, self.open = {}, None

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append((tag, given))
        if "id" in given:
            self.ids.append(given["id"])
        self.links += [v for k, v in attrs if k == "href"]
        self.loads += [v for k, v in attrs if k in {"src", "srcset", "data", "xlink:href"}]
        if tag in {"script", "style"}:
            self.open = given.get("id", tag)
            self.scripts[self.open] = ""

    def handle_endtag(self, tag):
        if tag in {"script", "style"}:
            self.open = None

    def handle_data(self, data):
        if self.open is None:
            self.text.append(data)
        else:
            self.scripts[self.open] += data


def read(text):
    reader = Reader()
    reader.feed(text)
    return reader
