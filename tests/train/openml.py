"""OpenML without a network: answers the requests of scikit-learn from a few small files.

It stands behind ``urllib``, where scikit-learn asks, so that scikit-learn's own cache, checksum and
retries are at work. Nothing is sent anywhere.
"""

import email.message
import hashlib
import io
import json
import urllib.request
import urllib.response

HOST = "https://www.openml.org"
FILE = "/data/v1/download/77/pictures.arff"


class OpenML(urllib.request.HTTPSHandler):
    """A server with one data set.

    ``asked`` lists the paths that were asked for. ``troubles`` maps the beginning of a path to a
    list of what happens at the next requests instead of the answer: an exception to raise, or
    a function from the answer to another one. ``content`` is the file; its checksum was taken when
    the server was made.
    """

    def __init__(self, images, labels, classes):
        super().__init__()
        self.asked, self.troubles = [], {}
        self.content = arff(images, labels, classes).encode()
        self.facts = facts(images.shape, classes, hashlib.md5(self.content).hexdigest())

    def https_open(self, request):
        """What urllib calls to answer a request."""
        path = request.full_url.removeprefix(HOST)
        self.asked.append(path)
        answer = self.content if path == FILE else self._fact(path)
        for start, coming in self.troubles.items():
            if path.startswith(start) and coming:
                trouble = coming.pop(0)
                if isinstance(trouble, Exception):
                    raise trouble
                answer = trouble(answer)
        body = answer if hasattr(answer, "read") else io.BytesIO(answer)
        response = urllib.response.addinfourl(body, email.message.Message(), request.full_url, 200)
        response.msg = "OK"
        return response

    def _fact(self, path):
        found = max((start for start in self.facts if path.startswith(start)), key=len)
        return json.dumps(self.facts[found]).encode()


class BreaksOff(io.RawIOBase):
    """A connection that is lost while its answer is read."""

    def read(self, size=-1):
        """Raises."""
        raise ConnectionResetError(104, "Connection reset by peer")


def columns(pixels, classes):
    """(name, values) of each column: numbers, or the names of the classes."""
    return [(f"a{i}", None) for i in range(pixels)] + [("class", [str(c) for c in range(classes)])]


def arff(images, labels, classes):
    """The file: a line for each column, and then one for each picture."""
    lines = ["@RELATION pictures"]
    for name, values in columns(images.shape[1], classes):
        lines.append(f"@ATTRIBUTE {name} " + (f"{{{','.join(values)}}}" if values else "REAL"))
    lines.append("@DATA")
    for row, label in zip(images.tolist(), labels.tolist(), strict=True):
        lines.append(",".join(map(str, [*row, label])))
    return "\n".join(lines) + "\n"


def facts(shape, classes, checksum):
    """What the server says about the file, by the beginning of the path."""
    feature = {"is_ignore": "false", "is_row_identifier": "false", "number_of_missing_values": "0"}
    features = [
        {
            "index": str(index),
            "name": name,
            "data_type": "nominal" if values else "numeric",
            "is_target": "true" if values else "false",
            **({"nominal_value": values} if values else {}),
            **feature,
        }
        for index, (name, values) in enumerate(columns(shape[1], classes))
    ]
    quality = [{"name": "NumberOfInstances", "value": str(shape[0])}]
    description = {
        "id": "77", "name": "pictures", "version": "1", "status": "active", "format": "ARFF",
        "description": "small", "url": HOST + FILE, "md5_checksum": checksum,
    }  # fmt: skip
    start = "/api/v1/json/data"
    return {
        f"{start}/list": {"data": {"dataset": [{"did": 77, "version": 1}]}},
        f"{start}/features": {"data_features": {"feature": features}},
        f"{start}/qualities": {"data_qualities": {"quality": quality}},
        f"{start}/77": {"data_set_description": description},
    }
