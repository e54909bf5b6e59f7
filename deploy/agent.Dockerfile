# The node agent alone, without Django: docker build -f deploy/agent.Dockerfile -t masthead-agent:0.1.0 .
FROM python:3.11.11-slim-bookworm
COPY agent /src/agent
RUN pip install --no-cache-dir "/src/agent[kubernetes,nvml]" && rm -r /src
# Root in its container: NVML lets nobody else set clocks. Everything else of root's rights is dropped where it runs.
ENTRYPOINT []
CMD ["masthead-agent", "run"]
