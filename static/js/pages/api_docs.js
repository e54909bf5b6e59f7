// The browsable page of the API: the schema drawn by Swagger UI, signed in by the session's cookie.
const place = document.getElementById("api");
const csrf = document.cookie.match(/(?:^|; )csrftoken=([^;]+)/)?.[1];
window.SwaggerUIBundle({
  url: place.dataset.schema,
  domNode: place,
  deepLinking: true,
  presets: [window.SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  requestInterceptor: (request) => {
    if (csrf) request.headers["X-CSRFToken"] = csrf;
    return request;
  },
});
