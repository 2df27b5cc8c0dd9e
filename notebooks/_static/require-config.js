// Loaded after require.js and before the widget manager: the modules that widgets ask for by name are
// looked up in _static/vendor first.
(function () {
  const here = document.currentScript.src;
  window.requirejs.config({ baseUrl: new URL("vendor/", here).href });
  // The widget manager typesets labels through MathJax 2's queue; hand its requests to MathJax 3, one
  // after the other.
  window.addEventListener("load", function () {
    const mathjax = window.MathJax;
    let last = mathjax?.startup?.promise;
    if (!last || mathjax.Hub) return;
    mathjax.Hub = { Queue: (job) => { last = last.then(() => mathjax.typesetPromise([job[2]])); } };
  });
})();
